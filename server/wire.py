"""How the events of a stream look on the wire, for each API surface.

What must stay true: an event is one write, ends with a blank line and holds one line of ASCII JSON (some clients split
lines at U+2028 and the like); a stream that breaks never looks like a complete answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from edgellm.server.errors import ApiError

Chunk = dict[str, Any]

to_json = json.JSONEncoder(separators=(",", ":")).encode  # ASCII
STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
COMMENT: Final = b": ping\n\n"  # tells a client that its stream is alive, and means nothing


@dataclass(frozen=True, slots=True)
class SideEvent:
    """An event beside the ordinary ones of a surface whose events have no names."""

    name: str
    data: Chunk


@dataclass(frozen=True, slots=True)
class Wire:
    """Attributes:
    named: an event is called by its `type`.
    ping: may be sent between any two events while the client waits.
    done: ends a stream, behind the last event; may be empty.
    failed: the last event of a stream that breaks, which tells why; None: its connection is just closed.
    """

    named: bool
    ping: bytes
    done: bytes
    failed: Callable[[ApiError], Chunk] | None = None

    def event(self, chunk: Chunk | SideEvent) -> bytes:
        if isinstance(chunk, SideEvent):
            return _event(chunk.data, chunk.name)
        return _event(chunk, chunk["type"] if self.named else "")

    def error(self, error: ApiError) -> bytes:
        """The event that tells why the stream breaks off; empty where the surface has none."""
        return b"" if self.failed is None else self.event(self.failed(error))


def _event(data: Chunk, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {to_json(data)}\n\n".encode("ascii")


OPENAI: Final = Wire(named=False, ping=COMMENT, done=b"data: [DONE]\n\n")
ANTHROPIC: Final = Wire(
    named=True,
    ping=b'event: ping\ndata: {"type":"ping"}\n\n',
    done=b"",
    failed=lambda error: error.body(anthropic=True),
)
RESPONSES: Final = Wire(named=True, ping=COMMENT, done=b"")  # `failed` needs the response that fails
