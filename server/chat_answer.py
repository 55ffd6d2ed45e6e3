"""One choice of a chat completion, streamed or whole.

Both forms come from the same deltas: the whole message is the merge of what would have been streamed. Reasoning is
`reasoning_content`, or `reasoning` where the server is set so, and never both: some clients add them up. Each tool call
has its own index; its id and name are sent once and whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgellm.runtime.types import Output
from edgellm.server.logprobs import chat_entries
from edgellm.server.said import Said, SaidCall
from edgellm.server.side_events import SideEvents
from edgellm.server.turns import CalledTool
from edgellm.server.wire import Chunk, SideEvent
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from edgellm.text.tokenizer import Tokenizer


class ChatChoice:
    """Implements `answer.Choice`. `side_events`: beside the ordinary deltas, if wanted."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        said: Said,
        *,
        logprobs: bool,
        reasoning_field: str,
        side_events: SideEvents | None = None,
    ) -> None:
        self._reasoning_field = reasoning_field
        self._index = index
        self._tokenizer = tokenizer
        self._said = said
        self._side_events = side_events
        self._entries: list[dict[str, Any]] | None = [] if logprobs else None
        self._sent_entries = 0

    @property
    def complete(self) -> bool:
        return self._said.complete

    @property
    def empty(self) -> bool:
        return self._said.empty

    @property
    def reasoning_tokens(self) -> int | None:
        return self._said.reasoning_tokens

    @property
    def tool_calls(self) -> tuple[CalledTool, ...]:
        return tuple(CalledTool(self._index, n, call.id, call.name) for n, call in enumerate(self._said.calls))

    def opening(self) -> Iterator[Chunk]:
        yield self._entry({"role": "assistant", "content": ""}, None, None)

    def feed(self, output: Output) -> Iterator[Chunk | SideEvent]:
        if self._entries is not None and not self.complete:
            self._entries += chat_entries(self._tokenizer, output.logprobs)
        shown = self._shown(output)
        entries = self._new_entries() if shown or output.finish_reason else None
        for delta in shown:
            if isinstance(delta, SideEvent):
                yield delta
            else:
                yield self._entry(delta, None, entries)
                entries = None
        if output.finish_reason is not None:
            yield self._entry({}, self._said.finish, entries)

    def whole(self) -> Chunk:
        said, content = self._said, "".join(self._said.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if said.calls and not content else content,
            "refusal": None,
        }
        if said.thoughts:
            message[self._reasoning_field] = "".join(said.thoughts)
        if said.calls:
            message["tool_calls"] = [_call(call, call.arguments) for call in said.calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._entries is None else _logprobs(self._entries),
            "finish_reason": said.finish,
        }

    def _shown(self, output: Output) -> list[Chunk | SideEvent]:
        """Deltas of one output, with the side events between them."""
        shown: list[Chunk | SideEvent] = []
        for item in self._said.feed(output):
            if self._side_events is not None:
                shown += self._side_events.before(item)
            if (delta := self._delta(item)) is not None:
                shown.append(delta)
        if self._side_events is not None and output.finish_reason is not None:
            shown += self._side_events.block_ended()
        return shown

    def _delta(self, item: ParsedDelta) -> Chunk | None:
        match item:
            case ContentDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {self._reasoning_field: text}
            case ToolCallStart(index):
                return {"tool_calls": [{"index": index, **_call(self._said.calls[index], "")}]}
            case ToolCallArguments(index, fragment):
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
            case ToolCallEnd():
                return None

    def _new_entries(self) -> list[dict[str, Any]] | None:
        if self._entries is None:
            return None
        fresh = self._entries[self._sent_entries :]
        self._sent_entries = len(self._entries)
        return fresh

    def _entry(self, delta: Chunk, finish_reason: str | None, entries: list[dict[str, Any]] | None) -> Chunk:
        entry: Chunk = {"index": self._index, "delta": delta, "finish_reason": finish_reason}
        if entries:
            entry["logprobs"] = _logprobs(entries)
        return entry


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def _call(call: SaidCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
