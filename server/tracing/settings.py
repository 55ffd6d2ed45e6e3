"""The settings of request traces, from the environment, under the names that Dynamo uses.

A name or value that is not supported is an error that names it. Settings of sinks that are refused (NATS, OTEL, S3)
have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from edgellm.errors import ConfigError
from edgellm.server.tracing.records import ADMISSION, REQUEST_END

OURS: Final = "EDGELLM_REQUEST_TRACE"
DYNAMO: Final = "DYN_REQUEST_TRACE"
_PREFIX: Final = DYNAMO + "_"
_PATH: Final = "/tmp/dynamo-request-trace"
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_RECORDS: Final = frozenset({REQUEST_END, "tool", ADMISSION})
_SINKS: Final = frozenset({"file", "stderr"})
_NUMBERS: Final = {  # default and least value
    "CAPACITY": (1024, 1),
    "FILE_BUFFER_BYTES": (1 << 20, 1),
    "FILE_FLUSH_INTERVAL_MS": (1000, 1),
    "FILE_ROLL_BYTES": (1 << 28, 1),
    "FILE_ROLL_LINES": (0, 0),
}
_READ: Final = frozenset(_NUMBERS) | {"RECORDS", "SINKS", "FILE_PATH", "OUTPUT_PATH", "FILE_FORMAT"}
_OF_OTHER_SINKS: Final = ("NATS_", "OTEL_", "S3_")

Format = Literal["jsonl", "jsonl_gz"]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Attributes:
    path: of the file ("jsonl") or what its segments' names begin with ("jsonl_gz": PATH.NNNNNN.jsonl.gz).
    records: event types that are written; "tool" is taken and nothing sends such records.
    sinks: "file", "stderr" or both.
    capacity: records that wait to be written; more are dropped.
    buffer_bytes, flush_interval_ms: lines are written when so many bytes or so much time have gathered.
    roll_bytes, roll_lines: a segment ends when it holds so many bytes before compression, or lines (0: no limit).
    """

    path: Path = Path(_PATH)
    format: Format = "jsonl_gz"
    records: frozenset[str] = frozenset({REQUEST_END})
    sinks: frozenset[str] = frozenset({"file"})
    capacity: int = 1024
    buffer_bytes: int = 1 << 20
    flush_interval_ms: int = 1000
    roll_bytes: int = 1 << 28
    roll_lines: int = 0


def trace_settings(environ: Mapping[str, str]) -> TraceSettings | None:
    """None when traces are off. `EDGELLM_REQUEST_TRACE` is 1, 0 or a path and stands above `DYN_REQUEST_TRACE`.

    Raises:
        ConfigError: a variable has a value or a name that is not supported.
    """
    ours = environ.get(OURS, "").strip()
    on = ours.lower() in _ON
    path = "" if on or ours.lower() in _OFF else ours
    if OURS in environ and not (on or path):
        return None
    if not (on or path or _switch(environ)):
        return None
    given = {name.removeprefix(_PREFIX): value.strip() for name, value in environ.items() if name.startswith(_PREFIX)}
    for name in given:
        if name not in _READ and not name.startswith(_OF_OTHER_SINKS):
            raise ConfigError(f"{_PREFIX}{name}: not supported")
    default = _RECORDS if on or path else _RECORDS - {ADMISSION}  # Dynamo's readers refuse types that they do not know
    path = path or given.get("FILE_PATH") or given.get("OUTPUT_PATH") or _PATH
    numbers = {name: _number(name, given, *limits) for name, limits in _NUMBERS.items()}
    return TraceSettings(
        path=Path(path),
        format=_format(given.get("FILE_FORMAT", ""), path if path == ours else ""),
        records=_words("RECORDS", given, ",".join(default), _RECORDS),
        sinks=_words("SINKS", given, "file", _SINKS),
        capacity=numbers["CAPACITY"],
        buffer_bytes=numbers["FILE_BUFFER_BYTES"],
        flush_interval_ms=numbers["FILE_FLUSH_INTERVAL_MS"],
        roll_bytes=numbers["FILE_ROLL_BYTES"],
        roll_lines=numbers["FILE_ROLL_LINES"],
    )


def _switch(environ: Mapping[str, str]) -> bool:
    value = environ.get(DYNAMO, "").strip().lower()
    if value not in _ON | _OFF:
        raise ConfigError(f"{DYNAMO}: must be 1 or 0, got {value!r}")
    return value in _ON


def _format(given: str, ours: str) -> Format:
    """A path ending in .jsonl that stands in `EDGELLM_REQUEST_TRACE` is that very file."""
    if given in ("jsonl", "jsonl_gz"):
        return "jsonl" if given == "jsonl" else "jsonl_gz"
    if given:
        raise ConfigError(f"{_PREFIX}FILE_FORMAT: must be jsonl_gz or jsonl, got {given!r}")
    return "jsonl" if ours.endswith(".jsonl") else "jsonl_gz"


def _words(name: str, given: Mapping[str, str], default: str, allowed: Collection[str]) -> frozenset[str]:
    words = frozenset(word.strip() for word in (given.get(name) or default).split(",") if word.strip())
    if wrong := sorted(words - frozenset(allowed)):
        raise ConfigError(f"{_PREFIX}{name}: {wrong[0]!r} is not supported, only {', '.join(sorted(allowed))}")
    return words


def _number(name: str, given: Mapping[str, str], default: int, least: int) -> int:
    text = given.get(name) or str(default)
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ConfigError(f"{_PREFIX}{name}: must be a whole number of at least {least}, got {text!r}")
    return int(text)
