"""What an operator may set about the HTTP server. Frozen; checked on construction with the setting named."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from edgellm.decode.params import MAX_STOP_STRINGS, SamplingParams
from edgellm.errors import ConfigError
from edgellm.server.admission.settings import AdmissionSettings
from edgellm.server.body import MAX_DEPTH
from edgellm.server.kv_events.zmq_publisher import ZmqSettings
from edgellm.server.logs import FORMATS
from edgellm.server.preamble import Preambles
from edgellm.server.tracing.settings import TraceSettings

REASONING_FIELDS = ("reasoning_content", "reasoning")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+")  # of editors and desktop programs too
_FROM_ONE = (
    *("max_body_bytes", "max_depth", "max_messages", "max_tools", "max_stops", "max_n", "max_choices"),
    *("max_in_flight", "retry_after_s", "keep_alive_s", "responses_store_bytes"),
)
_MOST = {
    "max_depth": 512,  # reading and rendering a body recurse
    "max_stops": MAX_STOP_STRINGS,
    "max_n": 128,
}


def _default_sampling() -> SamplingParams:
    """What the OpenAI API does when a request names nothing: temperature 1, no truncation."""
    return SamplingParams(temperature=1.0)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server. Sizes in bytes, times in seconds.

    `sampling` holds the defaults of requests that leave a sampling field out; its `max_tokens` (None: the rest of the
    context) is the default for chat. `prefix_cache=False` serves every request without reading or writing the cache.
    """

    model: str  # the name in /v1/models; requests for any other name get 404
    aliases: tuple[str, ...] = ()  # further names that requests may use
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free port
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # any of them opens; none: no key is asked for
    cors_origins: tuple[str, ...] = ()  # web pages of these origins may use the API; "*": of all
    tls_cert: Path | None = None  # PEM files; with both the server speaks HTTPS
    tls_key: Path | None = None
    log_format: str = "text"  # or "json"
    reasoning_field: str = "reasoning_content"  # or "reasoning": where answers carry it; requests may use either
    enable_thinking: bool = False  # unless chat_template_kwargs says otherwise
    preserve_thinking: bool = False  # earlier turns keep their reasoning in the prompt, likewise
    sampling: SamplingParams = field(default_factory=_default_sampling)
    prefix_cache: bool = True
    preambles: Preambles = field(default_factory=Preambles)  # removed from the start of system prompts
    tool_dispatch: bool = False  # chat streams carry `tool_call_dispatch` events
    reasoning_dispatch: bool = False  # and `reasoning_dispatch` events
    responses_store: Path | None = None  # file of the responses that can be continued by id; None: in memory
    responses_store_bytes: int = 64 << 20
    kv_events_zmq: ZmqSettings | None = None  # also publish KV events in vLLM's wire format
    request_trace: TraceSettings | None = None  # write a line for each request
    admission: AdmissionSettings | None = None  # sessions that do not fit the cache together take turns
    max_body_bytes: int = 8 << 20
    max_depth: int = MAX_DEPTH  # of nesting in a body
    max_messages: int = 10_000
    max_tools: int = 1024
    max_stops: int = MAX_STOP_STRINGS
    max_n: int = 8  # choices per prompt
    max_choices: int = 64  # of one request: prompts times n
    max_in_flight: int = 256  # POST requests inside the server, queued ones included; above it 503
    retry_after_s: int = 1  # told to refused clients
    body_timeout_s: float = 30.0  # to receive a whole request body
    deadline_s: float | None = None  # from submission to the last token; None: unlimited
    headers_after_s: float = 3.0  # a stream waits this long for its first token before it sends its 200
    ping_interval_s: float = 5.0  # then a comment line whenever a stream was silent this long
    write_timeout_s: float = 60.0  # a client that takes no bytes for this long is given up
    keep_alive_s: int = 75  # idle connections stay open
    shutdown_grace_s: int = 10  # for running requests when the server is told to stop

    def __post_init__(self) -> None:
        if not self.model or any(not alias for alias in self.aliases):
            raise ConfigError("model: a model name must not be empty")
        if self.reasoning_field not in REASONING_FIELDS:
            raise ConfigError(f"reasoning_field: must be one of {', '.join(REASONING_FIELDS)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: must be 0 to 65535, got {self.port}")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("api_keys: a key must not be empty; leave it out to serve without one")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"cors_origins: must be '*' or like https://host:port, got {origin!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(f"{missing}: a certificate and its key go together")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"{name}: {path} is not a file")
        if self.log_format not in FORMATS:
            raise ConfigError(f"log_format: must be one of {', '.join(FORMATS)}, got {self.log_format!r}")
        for name in _FROM_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name}: must be at most {most}, got {getattr(self, name)}")
        for name in ("body_timeout_s", "headers_after_s", "ping_interval_s", "write_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: must be a positive number of seconds, got {getattr(self, name)}")
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ConfigError(f"deadline_s: must be positive, got {self.deadline_s}")
        if self.shutdown_grace_s < 0:
            raise ConfigError(f"shutdown_grace_s: must not be negative, got {self.shutdown_grace_s}")

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a request may use."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))
