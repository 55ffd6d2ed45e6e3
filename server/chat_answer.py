"""One choice of a chat completion, streamed or whole.

Both forms come from the same deltas: the whole message is the merge of what would have been streamed. Reasoning is
`reasoning_content`, or `reasoning` where the server is set so, and never both: some clients add them up. Each tool call
has its own index; its id and name are sent once and whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgellm.runtime.types import Output, turn_ended
from edgellm.server.logprobs import chat_entries
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from edgellm.text.dialects import AnswerParser
from edgellm.text.tokenizer import Tokenizer

Delta = dict[str, Any]


class ChatChoice:
    """Implements `answer.Choice`. `one_call` ends it after the first complete tool call."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        parser: AnswerParser,
        *,
        thinking_open: bool,
        one_call: bool,
        logprobs: bool,
        reasoning_field: str,
    ) -> None:
        self._reasoning_field = reasoning_field
        self._index = index
        self._tokenizer = tokenizer
        self._parser = parser
        self._one_call = one_call
        self._entries: list[dict[str, Any]] | None = [] if logprobs else None
        self._reasoning = _ReasoningCount(tokenizer, open_=thinking_open)
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._ended_calls = 0
        self._sent_entries = 0
        self._final = Output()

    @property
    def complete(self) -> bool:
        return self._one_call and self._ended_calls > 0

    @property
    def empty(self) -> bool:
        return not self._content and not self._calls

    @property
    def reasoning_tokens(self) -> int | None:
        return self._reasoning.tokens

    def opening(self) -> Iterator[dict[str, Any]]:
        yield self._entry({"role": "assistant", "content": ""}, None, None)

    def feed(self, output: Output) -> Iterator[dict[str, Any]]:
        deltas = self._deltas(output)
        entries = self._new_entries() if deltas or output.finish_reason else None
        for delta in deltas:
            yield self._entry(delta, None, entries)
            entries = None
        if output.finish_reason is not None:
            self._final = output
            yield self._entry({}, self._finish_reason(output), entries)

    def whole(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not content else content,
            "refusal": None,
        }
        if self._thoughts:
            message[self._reasoning_field] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._entries is None else _logprobs(self._entries),
            "finish_reason": self._finish_reason(self._final),
        }

    def _deltas(self, output: Output) -> list[Delta]:
        """Parse one output and keep what it gave. Nothing counts after the answer is complete."""
        if self.complete:
            return []
        self._reasoning.count(output.token_ids)
        if self._entries is not None:
            self._entries += chat_entries(self._tokenizer, output.logprobs)
        parsed = self._parser.feed(output.text) if output.text else []
        if output.finish_reason is not None:
            parsed = parsed + self._parser.finish(turn_ended(output.finish_reason, output.stop_reason))
        deltas = []
        for item in parsed:
            if (delta := self._take(item)) is not None:
                deltas.append(delta)
            if self.complete:
                break
        return deltas

    def _take(self, item: ParsedDelta) -> Delta | None:
        match item:
            case ContentDelta(text):
                self._content.append(text)
                return {"content": text}
            case ReasoningDelta(text):
                self._thoughts.append(text)
                return {self._reasoning_field: text}
            case ToolCallStart(index, call_id, name):
                self._calls.append(_call(call_id, name))
                return {"tool_calls": [{"index": index, **_call(call_id, name)}]}
            case ToolCallArguments(index, fragment):
                self._calls[index]["function"]["arguments"] += fragment
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
            case ToolCallEnd():
                self._ended_calls += 1
                return None

    def _finish_reason(self, output: Output) -> str:
        """ "tool_calls" when the answer has calls and all are whole, else the engine's reason ("stop" or "length")."""
        whole = bool(self._calls) and self._ended_calls == len(self._calls)
        if (whole and output.finish_reason != "length") or self.complete:
            return "tool_calls"
        return "length" if output.finish_reason == "length" else "stop"

    def _new_entries(self) -> list[dict[str, Any]] | None:
        if self._entries is None:
            return None
        fresh = self._entries[self._sent_entries :]
        self._sent_entries = len(self._entries)
        return fresh

    def _entry(self, delta: Delta, finish_reason: str | None, entries: list[dict[str, Any]] | None) -> dict[str, Any]:
        entry: dict[str, Any] = {"index": self._index, "delta": delta, "finish_reason": finish_reason}
        if entries:
            entry["logprobs"] = _logprobs(entries)
        return entry


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def _call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}


class _ReasoningCount:
    """Counts generated tokens up to and including the end-of-thinking token; None when that is no single token."""

    def __init__(self, tokenizer: Tokenizer, *, open_: bool) -> None:
        self._end = tokenizer.added.get("</think>")
        self._open = open_
        self._count = 0

    @property
    def tokens(self) -> int | None:
        return None if self._end is None else self._count

    def count(self, token_ids: tuple[int, ...]) -> None:
        if not self._open or self._end is None:
            return
        if self._end in token_ids:
            self._count += token_ids.index(self._end) + 1
            self._open = False
        else:
            self._count += len(token_ids)
