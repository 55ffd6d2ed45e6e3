"""Content blocks of an answer, from the parsed deltas of its generation.

What must stay true: blocks come in the order in which they were said, under indices 0, 1, …, one open at a time; the
whole blocks are what the events add up to. A call that was cut or is malformed stays a block: its events end in the
middle of its JSON, and its whole `input` has the members that were complete, as the official clients read such events.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from edgellm.server.said import SaidCall
from edgellm.server.wire import Chunk
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def tool_id(call: SaidCall) -> str:
    """The call's id in Anthropic's form."""
    return f"toolu_{call.id.removeprefix('call_')}"


@dataclass(slots=True)
class _Block:
    start: Chunk  # what opens it
    parts: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        kind: str = self.start["type"]
        return kind

    def whole(self) -> Chunk:
        text = "".join(self.parts)
        match self.kind:
            case "thinking":
                return {**self.start, "thinking": text, "signature": _signature(text)}
            case "tool_use":
                return {**self.start, "input": _input(text)}
            case _:
                return {**self.start, "text": text}


class SaidBlocks:
    """Takes an answer's deltas, gives the events that show them."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open = False

    def take(self, delta: ParsedDelta, calls: list[SaidCall]) -> Iterator[Chunk]:
        """`calls`: of the answer so far, the delta's own among them."""
        match delta:
            case ContentDelta(text):
                yield from self._within({"type": "text", "text": ""})
                yield from self._add(text)
            case ReasoningDelta(text):
                yield from self._within({"type": "thinking", "thinking": "", "signature": ""})
                yield from self._add(text)
            case ToolCallStart(index, _, name):
                yield from self.close()
                yield from self._within({"type": "tool_use", "id": tool_id(calls[index]), "name": name, "input": {}})
            case ToolCallArguments(_, fragment):
                yield from self._add(fragment)
            case ToolCallEnd():
                yield from self.close()

    def close(self) -> Iterator[Chunk]:
        """Events that end the open block, if there is one."""
        if not self._open:
            return
        self._open = False
        block, index = self._blocks[-1], len(self._blocks) - 1
        if block.kind == "thinking":
            signature = {"type": "signature_delta", "signature": block.whole()["signature"]}
            yield {"type": "content_block_delta", "index": index, "delta": signature}
        yield {"type": "content_block_stop", "index": index}

    def whole(self) -> list[Chunk]:
        return [block.whole() for block in self._blocks]

    def _within(self, start: Chunk) -> Iterator[Chunk]:
        """Events that lead into a block of this kind."""
        if self._open and self._blocks[-1].kind == start["type"]:
            return
        yield from self.close()
        self._blocks.append(_Block(start))
        self._open = True
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": start}

    def _add(self, text: str) -> Iterator[Chunk]:
        block = self._blocks[-1]
        block.parts.append(text)
        kind, name = _DELTAS[block.kind]
        yield {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": {"type": kind, name: text}}


def _signature(thinking: str) -> str:
    """Clients keep it and send it back; it must not be empty and says nothing."""
    return base64.b64encode(hashlib.sha256(thinking.encode("utf-8", "replace")).digest()).decode("ascii")


def _input(arguments: str) -> dict[str, Any]:
    """The members of an object that are complete in JSON text that may be cut; none of what is no JSON."""
    try:
        found = from_json(arguments, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return _finite(found) if isinstance(found, dict) else {}


def _finite(value: Any) -> Any:
    """With numbers beyond double range as the largest there is: JSON has no infinity."""
    if isinstance(value, float):
        return max(-sys.float_info.max, min(value, sys.float_info.max))
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
