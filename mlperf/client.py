"""A client that talks to a server as the MLCommons `endpoints` harness does: one keep-alive connection, one request
at a time, first-token time taken at the first delta that carries text or a tool call.

It stands in for the harness where that cannot be installed. Request bytes and answer parsing are those of ``wire.py``;
two things are reported that the harness hides: a truncated stream and the server's `usage`.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from edgellm.errors import ConfigError, EdgeLLMError
from edgellm.mlperf.wire import CHAT_PATH, MODELS_PATH, Frame, merge_tool_calls, read_frames, request_bytes

MAX_IDLE_S = 4.0  # the harness reconnects after this much idling
_READ_BYTES = 1 << 16
_USAGE_KEYS = ("prompt_tokens", "completion_tokens", "total_tokens")


class AnswerError(EdgeLLMError):
    """The server answered with another status than 200, or with a body that the harness cannot use."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request. Times are seconds since the request was sent."""

    content: str
    reasoning: str
    tool_calls: tuple[dict[str, Any], ...]
    finish_reason: str | None
    usage: Mapping[str, Any] | None  # only when the server sends it
    ttft_s: float | None  # None: nothing but empty deltas came
    latency_s: float
    deltas: int  # frames with text or tool calls
    warnings: tuple[str, ...] = ()
    truncated: bool = False  # the stream broke; the harness counts such a turn as a success

    @property
    def empty(self) -> bool:
        """Neither text nor a tool call: a turn that scores nothing."""
        return not self.content and not self.tool_calls

    def tpot_s(self, completion_tokens: int) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens or no first token."""
        if self.ttft_s is None or completion_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (completion_tokens - 1)


class HarnessClient:
    """Sends chat completions to ``url`` (``http://host:port``, without ``/v1``) over one connection.

    Raises:
        ConfigError: the URL is not plain http.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"server URL must be http://host:port, got {url!r}")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._path = parts.path.rstrip("/") + CHAT_PATH
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._last_used = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def chat(self, body: Mapping[str, Any], *, session_id: str | None = None) -> Answer:
        """Send one body and read its answer to the end.

        Raises:
            AnswerError: status other than 200, or an unusable non-streaming body.
            OSError: the connection failed or timed out; the next call reconnects.
        """
        raw = request_bytes(self._host, self._port, body, path=self._path, api_key=self._api_key, session_id=session_id)
        connection = self._connect()
        start = time.perf_counter()
        keep = False
        try:
            connection.sendall(raw)
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            if response.status != 200:
                text = response.read().decode("utf-8", errors="replace")
                keep = not response.will_close
                raise AnswerError(response.status, text)
            answer = self._read_stream(response, start) if body.get("stream") else _read_json(response, start)
            keep = not answer.truncated and not response.will_close
            return answer
        finally:
            self._last_used = time.monotonic()
            if not keep:
                self.close()

    def first_model(self) -> str:
        """The id of the first model that the server lists.

        Raises:
            AnswerError: it lists none.
            OSError: the connection failed.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            connection.request("GET", self._path.removesuffix(CHAT_PATH) + MODELS_PATH, headers=headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", errors="replace")
        finally:
            connection.close()
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise AnswerError(response.status, text) from None

    def _connect(self) -> socket.socket:
        if self._socket is not None and time.monotonic() - self._last_used > MAX_IDLE_S:
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _read_stream(self, response: http.client.HTTPResponse, start: float) -> Answer:
        reading = _Reading(start)
        try:
            for batch in _batches(response):
                frames, warning = read_frames(batch)
                if warning is not None:
                    reading.warnings.append(warning)
                for frame in frames:
                    reading.add(frame)
        except (http.client.HTTPException, ConnectionError):
            reading.truncated = True
        return reading.answer()


def _batches(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Complete events as they arrive: up to the last blank line of what was read."""
    buffer = b""
    while piece := response.read1(_READ_BYTES):
        buffer += piece
        end = buffer.rfind(b"\n\n")
        if end >= 0:
            yield buffer[: end + 2]
            buffer = buffer[end + 2 :]
    if buffer:
        yield buffer


@dataclass(slots=True)
class _Reading:
    start: float
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    first: float | None = None
    deltas: int = 0
    truncated: bool = False

    def add(self, frame: Frame) -> None:
        self.usage = frame.usage or self.usage
        self.finish_reason = frame.finish_reason or self.finish_reason
        delta = frame.delta or {}
        calls = delta.get("tool_calls") or []
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if not (delta.get("content") or reasoning or calls):
            return
        if self.first is None:
            self.first = time.perf_counter()
        self.deltas += 1
        self.calls.extend(calls)
        if delta.get("content"):
            self.content.append(delta["content"])
        elif reasoning:
            self.reasoning.append(reasoning)

    def answer(self) -> Answer:
        return Answer(
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            tool_calls=merge_tool_calls(self.calls),
            finish_reason=self.finish_reason,
            usage=self.usage,
            ttft_s=None if self.first is None else self.first - self.start,
            latency_s=time.perf_counter() - self.start,
            deltas=self.deltas,
            warnings=tuple(self.warnings),
            truncated=self.truncated,
        )


def _read_json(response: http.client.HTTPResponse, start: float) -> Answer:
    text = response.read().decode("utf-8", errors="replace")
    latency = time.perf_counter() - start
    try:
        document = json.loads(text)
        choice = document["choices"][0]
        message = choice["message"]
        usage = document.get("usage")
        missing = [key for key, where in (("role", message), ("index", choice), ("id", document)) if key not in where]
        missing += [key for key in _USAGE_KEYS if usage is not None and key not in usage]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
    except (ValueError, LookupError, TypeError) as error:
        raise AnswerError(200, f"unusable body ({error}): {text[:200]}") from error
    if message.get("reasoning_content") and message.get("reasoning"):
        raise AnswerError(200, "both reasoning_content and reasoning are set")
    return Answer(
        content=message.get("content") or "",
        reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
        tool_calls=tuple(message.get("tool_calls") or ()),
        finish_reason=choice.get("finish_reason"),
        usage=usage,
        ttft_s=latency,
        latency_s=latency,
        deltas=1,
    )
