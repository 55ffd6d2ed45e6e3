"""What one generation has said so far, parsed: the part that the answers of all chat surfaces have in common.

What must stay true: deltas joined give the whole, however the output is cut; nothing counts after the answer is
complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgellm.runtime.types import Output, turn_ended
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from edgellm.text.dialects import AnswerParser
from edgellm.text.tokenizer import Tokenizer

Finish = Literal["tool_calls", "length", "stop"]


@dataclass(slots=True)
class SaidCall:
    """A tool call as far as it was read; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


class Said:
    """Args:
        thinking_open: the prompt ends inside a reasoning block.
        one_call: the answer is complete with its first whole tool call.

    Attributes:
        content: the words of the answer, whole pieces in their order; `thoughts`: those of its reasoning.
        calls: tool calls, in their order.
        final: the last output, once it came.
    """

    def __init__(self, tokenizer: Tokenizer, parser: AnswerParser, *, thinking_open: bool, one_call: bool) -> None:
        self._parser = parser
        self._one_call = one_call
        self._reasoning = _ReasoningCount(tokenizer, open_=thinking_open)
        self._ended_calls = 0
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[SaidCall] = []
        self.final = Output()

    @property
    def complete(self) -> bool:
        """Finished although the model would go on."""
        return self._one_call and self._ended_calls > 0

    @property
    def empty(self) -> bool:
        """Neither words nor a call."""
        return not self.content and not self.calls

    @property
    def reasoning_tokens(self) -> int | None:
        """None when they cannot be told from the others."""
        return self._reasoning.tokens

    @property
    def finish(self) -> Finish:
        """Why it ended: with calls that are all whole, at a limit, or of itself."""
        whole = bool(self.calls) and self._ended_calls == len(self.calls)
        if (whole and self.final.finish_reason != "length") or self.complete:
            return "tool_calls"
        return "length" if self.final.finish_reason == "length" else "stop"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it."""
        reason = self.final.stop_reason
        return reason if isinstance(reason, str) and self.finish == "stop" else None

    def feed(self, output: Output) -> list[ParsedDelta]:
        """What one output adds."""
        taken: list[ParsedDelta] = []
        if not self.complete:
            self._reasoning.count(output.token_ids)
            parsed = self._parser.feed(output.text) if output.text else []
            if output.finish_reason is not None:
                parsed = parsed + self._parser.finish(turn_ended(output.finish_reason, output.stop_reason))
            for delta in parsed:
                self._take(delta)
                taken.append(delta)
                if self.complete:
                    break
        if output.finish_reason is not None:
            self.final = output
        return taken

    def _take(self, delta: ParsedDelta) -> None:
        match delta:
            case ContentDelta(text):
                self.content.append(text)
            case ReasoningDelta(text):
                self.thoughts.append(text)
            case ToolCallStart(_, call_id, name):
                self.calls.append(SaidCall(call_id, name))
            case ToolCallArguments(index, fragment):
                self.calls[index].arguments += fragment
            case ToolCallEnd():
                self._ended_calls += 1


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
