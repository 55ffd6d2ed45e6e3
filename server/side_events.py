"""Events beside the ordinary deltas of a chat stream, for agents that act before the answer is over (by setting).

* ``tool_call_dispatch``: a call whose arguments are complete JSON, once per call, right before the ordinary delta that
  completes them: ``{"choice_index", "tool_call": {"index", "id", "type", "function": {"name", "arguments"}}}``.
* ``reasoning_dispatch``: a whole reasoning block when it ends, ``{"index", "reasoning_content"}``.
Names and forms are those of NVIDIA Dynamo 1.6. What must stay true: ordinary deltas are the same with and without.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgellm.server.said import Said
from edgellm.server.wire import SideEvent
from edgellm.text.deltas import ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart


class SideEvents:
    """Of one choice, numbered `index`. `before` goes ahead of each delta that `said` has just taken."""

    def __init__(self, index: int, said: Said, *, tools: bool, reasoning: bool) -> None:
        self._index = index
        self._said = said
        self._tools = tools
        self._reasoning = reasoning
        self._block: list[str] = []
        self._json = _ObjectEnd()
        self._sent: set[int] = set()

    def before(self, delta: ParsedDelta) -> Iterator[SideEvent]:
        if isinstance(delta, ReasoningDelta):
            if self._reasoning:
                self._block.append(delta.text)
            return
        yield from self.block_ended()
        if not self._tools:
            return
        match delta:
            case ToolCallStart():
                self._json = _ObjectEnd()
            case ToolCallArguments(index, fragment) if self._json.ends_in(fragment):
                yield from self._call(index)
            case ToolCallEnd(index):  # a call without arguments
                yield from self._call(index)

    def block_ended(self) -> Iterator[SideEvent]:
        """At the end of a reasoning block, or of the answer."""
        if self._block:
            yield SideEvent("reasoning_dispatch", {"index": self._index, "reasoning_content": "".join(self._block)})
            self._block.clear()

    def _call(self, index: int) -> Iterator[SideEvent]:
        if index in self._sent:
            return
        self._sent.add(index)
        call = self._said.calls[index]
        function = {"name": call.name, "arguments": call.arguments or "{}"}
        made = {"index": index, "id": call.id, "type": "function", "function": function}
        yield SideEvent("tool_call_dispatch", {"choice_index": self._index, "tool_call": made})


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces and is known to be well formed."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def ends_in(self, piece: str) -> bool:
        ended = False
        for char in piece:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                ended = ended or self._depth == 0
        return ended
