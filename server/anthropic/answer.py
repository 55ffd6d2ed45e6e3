"""The answer to a Messages request, streamed or whole.

What must stay true: both forms come from the same events; the three counts of prompt tokens add up to the prompt's
length wherever they stand. How much of the prompt came from the cache is known at the end: `message_start` counts it
all as input, `message_delta` says it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from edgellm.runtime.types import Output, Request, Usage
from edgellm.server.anthropic.said_blocks import SaidBlocks, tool_id
from edgellm.server.said import Finish, Said
from edgellm.server.turns import CalledTool
from edgellm.server.wire import ANTHROPIC, Chunk

_STOP_REASONS: Final[dict[Finish, str]] = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


class MessagesAnswer:
    """Implements `sse.Answer` for one generation; `model` is the name to answer under."""

    wire = ANTHROPIC

    def __init__(self, request: Request, said: Said, *, model: str) -> None:
        self._head = {"id": request.id, "type": "message", "role": "assistant", "model": model}
        self._said = said
        self._blocks = SaidBlocks()
        self._running = Usage(prompt_tokens=len(request.prompt), cached_tokens=0, completion_tokens=0)
        self.usage: Usage | None = None

    def complete(self, index: int) -> bool:
        return self._said.complete

    def empty(self, index: int) -> bool:
        return self._said.empty

    def tool_calls(self) -> tuple[CalledTool, ...]:
        return tuple(CalledTool(0, n, tool_id(call), call.name) for n, call in enumerate(self._said.calls))

    def opening(self) -> Iterator[Chunk]:
        nothing: Chunk = {"content": [], "stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": {**self._head, **nothing, "usage": self._usage(self._running)}}

    def feed(self, index: int, output: Output) -> Iterator[Chunk]:
        for delta in self._said.feed(output):
            yield from self._blocks.take(delta, self._said.calls)
        if output.finish_reason is not None:
            self.usage = output.usage
            yield from self._blocks.close()

    def closing(self) -> Iterator[Chunk]:
        yield {"type": "message_delta", "delta": self._stop(), "usage": self._final_usage()}
        yield {"type": "message_stop"}

    def body(self) -> Chunk:
        return {**self._head, "content": self._blocks.whole(), **self._stop(), "usage": self._final_usage()}

    def _stop(self) -> Chunk:
        matched = self._said.stop_string
        reason = "stop_sequence" if matched is not None else _STOP_REASONS[self._said.finish]
        return {"stop_reason": reason, "stop_sequence": matched}

    def _final_usage(self) -> dict[str, Any]:
        counts = self._usage(self.usage or self._running)
        thinking = self._said.reasoning_tokens
        return counts if thinking is None else {**counts, "output_tokens_details": {"thinking_tokens": thinking}}

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """Every prompt token is either read from the cache or input: writing to it is not counted apart."""
        return {
            "input_tokens": usage.prefilled_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }
