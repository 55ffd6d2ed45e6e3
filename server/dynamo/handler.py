"""The endpoint that Dynamo calls: one request in, token deltas out.

Chunks are ``{"token_ids", "index": 0}``; the last has ``finish_reason`` and ``completion_usage``, and an end or stop
token among its tokens: the frontend, which makes the text, takes it out again. What must stay true: a request whose
caller has left, or that the runtime has dropped, stops at once; a refusal reaches the client with the field named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from edgellm.errors import EdgeLLMError, EngineDeadError, QueueFullError, RequestError
from edgellm.server.dynamo.requests import RequestReader
from edgellm.server.load import Load
from edgellm.server.logprobs import FLOOR

if TYPE_CHECKING:
    from edgellm.runtime.generation import Generation
    from edgellm.runtime.llm import LLM
    from edgellm.runtime.types import Output, TokenLogprob, Usage
    from edgellm.server.dynamo.kv_events import KvEvents
    from edgellm.text.tokenizer import Tokenizer

_FINISH: Final = {"stop": "stop", "length": "length", "deadline": "length"}
Chunk = dict[str, Any]


class Context(Protocol):
    """What is used of Dynamo's `Context`."""

    def id(self) -> str: ...
    def is_stopped(self) -> bool: ...
    def async_killed_or_stopped(self) -> asyncio.Future[bool]: ...


class Handler:
    """See the module's docstring.

    Args:
        load: counts the requests inside.
        events: told the salts that come by.

    Attributes:
        held: tokens of each request inside, by its id.
    """

    def __init__(self, llm: LLM, reader: RequestReader, load: Load, events: KvEvents) -> None:
        self.held: dict[str, int] = {}
        self._submit = llm.engine.submit
        self._tokenizer = llm.tokenizer
        self._reader = reader
        self._load = load
        self._events = events

    async def generate(self, request: Mapping[str, Any], context: Context) -> AsyncGenerator[Chunk, None]:
        """Answer one request. The runtime passes `context` by this name.

        Raises:
            dynamo.llm.exceptions.DynamoException: see `as_dynamo_error`.
        """
        request_id = context.id()
        with self._load.inside():
            try:
                asked = await asyncio.to_thread(self._reader.read, request, request_id)
                self._events.learn(asked.cache.salt)
                generation = self._submit(asked)
            except EdgeLLMError as error:
                raise as_dynamo_error(error) from error
            watch = asyncio.ensure_future(_cancel_with(context, generation))
            self.held[request_id] = len(asked.prompt)
            try:
                async for output in generation:
                    self.held[request_id] += len(output.token_ids)
                    if output.finish_reason == "abort" and not context.is_stopped():
                        raise as_dynamo_error(EngineDeadError("the worker stops"))
                    yield chunk(output, self._tokenizer)
            finally:
                generation.cancel()
                watch.cancel()
                del self.held[request_id]


async def _cancel_with(context: Context, generation: Generation) -> None:
    await context.async_killed_or_stopped()
    generation.cancel()


def chunk(output: Output, tokenizer: Tokenizer) -> Chunk:
    """An output in Dynamo's form."""
    made: Chunk = {"token_ids": list(output.token_ids), "index": 0}
    if output.logprobs:
        made["log_probs"] = [max(item.logprob, FLOOR) for item in output.logprobs]
        made["top_logprobs"] = [_top(item, tokenizer) for item in output.logprobs]
    if output.finish_reason is None:
        return made
    if output.finish_reason == "error":
        made["finish_reason"] = f"error: {output.error}"
    else:
        made["finish_reason"] = _FINISH.get(output.finish_reason, "cancelled")
    if output.stop_reason is not None:
        made["stop_reason"] = output.stop_reason
    if output.usage is not None:
        made["completion_usage"] = _usage(output.usage)
    return made


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _top(item: TokenLogprob, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    entries = []
    for rank, (token, logprob) in enumerate(item.top, 1):
        raw = tokenizer.token_bytes(token)
        text = raw.decode("utf-8", "replace")
        entry = {"rank": rank, "token_id": token, "token": text, "logprob": max(logprob, FLOOR), "bytes": list(raw)}
        entries.append(entry)
    return entries


def as_dynamo_error(error: EdgeLLMError) -> Exception:
    """The exception of Dynamo's that makes its frontend answer rightly.

    400 with our message for a wrong request, 503 for a full queue; a worker that stops is left out of routing, and the
    request goes to another one if the frontend may migrate it.
    """
    from dynamo.llm import exceptions

    kinds = {RequestError: "InvalidArgument", QueueFullError: "WorkerUnavailable", EngineDeadError: "EngineShutdown"}
    made: Exception = getattr(exceptions, kinds.get(type(error), "Unknown"))(str(error))
    return made
