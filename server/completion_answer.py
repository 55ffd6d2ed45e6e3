"""One choice of a text completion, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgellm.runtime.types import Output, TokenLogprob
from edgellm.server.logprobs import CompletionLogprobs
from edgellm.text.tokenizer import Tokenizer


class CompletionChoice:
    """Implements `answer.Choice`. `echo` is text that goes in front of the answer."""

    complete = False
    reasoning_tokens = None  # raw text has no reasoning to tell apart
    tool_calls = ()

    def __init__(self, index: int, tokenizer: Tokenizer, *, echo: str, logprobs: bool) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._echo = echo
        self._want_logprobs = logprobs
        self._logprobs: list[TokenLogprob] = []
        self._stream_logprobs = CompletionLogprobs(tokenizer)
        self._sent = 0
        self._text: list[str] = []
        self._finish_reason: str | None = None

    @property
    def empty(self) -> bool:
        return not any(self._text)

    def opening(self) -> Iterator[dict[str, Any]]:
        if self._echo:
            yield self._entry(self._echo, None, None)

    def feed(self, output: Output) -> Iterator[dict[str, Any]]:
        self._text.append(output.text)
        self._logprobs.extend(output.logprobs)
        self._finish_reason = output.finish_reason
        if output.text or output.finish_reason is not None:
            fresh, self._sent = self._logprobs[self._sent :], len(self._logprobs)
            block = self._stream_logprobs.block(fresh) if self._want_logprobs else None
            yield self._entry(output.text, output.finish_reason, block)

    def whole(self) -> dict[str, Any]:
        block = CompletionLogprobs(self._tokenizer).block(self._logprobs) if self._want_logprobs else None
        return self._entry(self._echo + "".join(self._text), self._finish_reason, block)

    def _entry(self, text: str, finish_reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
