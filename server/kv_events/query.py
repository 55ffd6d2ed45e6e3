"""What a request for KV events asks for."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from edgellm.server.fields import bad_value

MOST_WAIT_MS = 60_000
_NAMES = ("snapshots", "poll", "timeout_ms", "last_event_id")


@dataclass(frozen=True, slots=True)
class Query:
    """`resume` is where the reader left off, from the header `Last-Event-ID` or the parameter `last_event_id`."""

    snapshots: bool
    poll: bool
    timeout_ms: int
    resume: str | None


def read_query(http: Request) -> Query:
    """Raises RequestError, which names the parameter."""
    values = http.query_params
    for name in values:
        if name not in _NAMES:
            raise bad_value(name, f"is not a parameter; there are {', '.join(_NAMES)}")
    poll = _flag(values.get("poll"), "poll")
    timeout_ms = values.get("timeout_ms")
    if timeout_ms is not None and not poll:
        raise bad_value("timeout_ms", "goes with poll=true only")
    resume = http.headers.get("last-event-id") or values.get("last_event_id")
    return Query(_flag(values.get("snapshots"), "snapshots"), poll, _milliseconds(timeout_ms), resume or None)


def _flag(value: str | None, name: str) -> bool:
    if value not in (None, "true", "false"):
        raise bad_value(name, "must be true or false")
    return value == "true"


def _milliseconds(value: str | None) -> int:
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < 10) or int(value) > MOST_WAIT_MS:
        raise bad_value("timeout_ms", f"must be a whole number from 0 to {MOST_WAIT_MS}")
    return int(value)
