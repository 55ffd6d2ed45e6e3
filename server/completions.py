"""POST /v1/completions: raw text or token ids in, text out.

`prompt` is one string or one array of token ids (each may be wrapped in an array of one). Control-token literals in a
string prompt are control tokens: whoever writes raw prompts writes the markup. The default limit is the OpenAI API's
16 tokens. `echo`, `suffix` and several prompts or choices are refused by name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgellm.decode.params import MAX_LOGPROBS
from edgellm.errors import RequestError
from edgellm.runtime.types import CacheParams, Output, Request, TokenLogprob
from edgellm.server.body import parse_object
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.logprobs import CompletionLogprobs
from edgellm.server.names import check_model, new_id
from edgellm.server.sampling import (
    UNSUPPORTED_CONSTRAINTS,
    check_token_ids,
    clamp_to_context,
    one_choice,
    read_max_tokens,
    read_sampling,
    read_stream,
)
from edgellm.server.settings import ServerSettings
from edgellm.server.usage import usage_object
from edgellm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

DEFAULT_MAX_TOKENS = 16
_REFUSED = {
    **UNSUPPORTED_CONSTRAINTS,
    "echo": "returning the prompt is not supported",
    "suffix": "insertion is not supported",
    "response_format": "not supported for text completions",
    "prompt_logprobs": "not supported",
}


@dataclass(frozen=True, slots=True)
class CompletionJob:
    request: Request
    answer: CompletionAnswer
    stream: bool


def read_completion(body: bytes, llm: LLM, settings: ServerSettings) -> CompletionJob:
    """Everything between the body's bytes and the engine.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    fields = Fields(parse_object(body))
    model = check_model(fields, settings)
    fields.refuse(_REFUSED)
    one_choice(fields, "n", "best_of")
    stream, include_usage = read_stream(fields)
    limit = read_max_tokens(fields, "max_tokens", "max_completion_tokens") or DEFAULT_MAX_TOKENS
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    salt = fields.string("cache_salt") or ""
    sampling = read_sampling(fields, settings.sampling, vocab_size=llm.tokenizer.vocab_size, logprobs=logprobs)
    prompt = _prompt(fields, llm.tokenizer)
    limit = clamp_to_context(len(prompt), limit, llm.info.max_tokens, param="prompt")
    request = Request(
        id=new_id("cmpl"),
        prompt=tuple(prompt),
        sampling=replace(sampling, max_tokens=limit),
        cache=CacheParams(read=settings.prefix_cache, write=settings.prefix_cache, salt=salt),
        deadline_s=settings.deadline_s,
    )
    answer = CompletionAnswer(
        request.id, model, llm.tokenizer, logprobs=logprobs is not None, include_usage=include_usage
    )
    return CompletionJob(request, answer, stream)


def _prompt(fields: Fields, tokenizer: Tokenizer) -> list[int]:
    value = fields.data.get("prompt")
    path = fields.at("prompt")
    if value is None:
        raise bad_value(path, "is required")
    if isinstance(value, list) and value and isinstance(value[0], (str, list)):
        if len(value) > 1:
            raise unsupported(path, f"one prompt per request is supported, got {len(value)}")
        value, path = value[0], f"{path}[0]"
    if isinstance(value, str):
        try:
            tokens = tokenizer.encode(value, allow_special=True)
        except RequestError as error:
            raise RequestError(str(error), param=path, code=error.code) from error
    elif isinstance(value, list):
        tokens = check_token_ids(value, path, tokenizer.vocab_size)
    else:
        raise wrong_type(path, "a string or an array of token ids", value)
    if not tokens:
        raise bad_value(path, "must not be empty")
    return tokens


class CompletionAnswer:
    """Implements `sse.Answer`."""

    complete = False

    def __init__(
        self, request_id: str, model: str, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._envelope = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        self._want_logprobs = logprobs
        self._tokenizer = tokenizer
        self._logprobs: list[TokenLogprob] = []
        self._stream_logprobs = CompletionLogprobs(tokenizer)
        self._sent = 0
        self._text: list[str] = []

    @property
    def empty(self) -> bool:
        return not any(self._text)

    def opening(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def feed(self, output: Output) -> Iterator[dict[str, Any]]:
        self._text.append(output.text)
        self._logprobs.extend(output.logprobs)
        if output.text or output.finish_reason is not None:
            fresh, self._sent = self._logprobs[self._sent :], len(self._logprobs)
            block = self._stream_logprobs.block(fresh) if self._want_logprobs else None
            yield {**self._envelope, "choices": [_choice(output.text, output.finish_reason, block)]}
        if output.finish_reason is not None and self._include_usage:
            yield {**self._envelope, "choices": [], "usage": usage_object(output.usage)}

    def body(self, final: Output) -> dict[str, Any]:
        block = CompletionLogprobs(self._tokenizer).block(self._logprobs) if self._want_logprobs else None
        choice = _choice("".join(self._text), final.finish_reason, block)
        return {**self._envelope, "choices": [choice], "usage": usage_object(final.usage)}


def _choice(text: str, finish_reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
