"""Finished answers for the Python API: the outputs of a generation put together, and a chat answer's parts."""

from __future__ import annotations

from dataclasses import dataclass

from edgellm.errors import ExecutionError
from edgellm.runtime.types import FinishReason, Output, Timing, TokenLogprob, Usage, turn_ended
from edgellm.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from edgellm.text.dialects import AnswerParser


@dataclass(frozen=True, slots=True)
class Result:
    """One answer. `text` has no stop string and no control tokens; `token_ids` are all generated tokens."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timing: Timing
    logprobs: tuple[TokenLogprob, ...] | None  # when asked for


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class ChatResult:
    """One chat answer in its parts; `result` has the raw text, tokens, usage and timing."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    result: Result


class Collector:
    """Puts outputs together."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._last = Output()

    def add(self, output: Output) -> None:
        self._text.append(output.text)
        self._tokens += output.token_ids
        self._logprobs += output.logprobs
        self._last = output

    def result(self) -> Result:
        """After the last output.

        Raises:
            ExecutionError: the request failed while it ran.
        """
        last = self._last
        if last.finish_reason == "error":
            raise ExecutionError(last.error or "the generation failed")
        assert last.finish_reason is not None
        assert last.usage is not None
        assert last.timing is not None
        return Result(
            text="".join(self._text),
            token_ids=tuple(self._tokens),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            usage=last.usage,
            timing=last.timing,
            logprobs=tuple(self._logprobs) or None,
        )


def parse_chat(result: Result, parser: AnswerParser) -> ChatResult:
    """Split an answer into reasoning, content and tool calls, with a fresh parser."""
    content: list[str] = []
    reasoning: list[str] = []
    names: dict[int, tuple[str, str]] = {}
    arguments: dict[int, list[str]] = {}
    ended = turn_ended(result.finish_reason, result.stop_reason)
    for delta in [*parser.feed(result.text), *parser.finish(ended)]:
        if isinstance(delta, ContentDelta):
            content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            reasoning.append(delta.text)
        elif isinstance(delta, ToolCallStart):
            names[delta.index] = (delta.id, delta.name)
            arguments[delta.index] = []
        elif isinstance(delta, ToolCallArguments):
            arguments[delta.index].append(delta.fragment)
    calls = tuple(ToolCall(*names[index], "".join(arguments[index])) for index in sorted(names))
    return ChatResult("".join(content), "".join(reasoning), calls, result)
