"""A model that says a given text, and the handler in front of it, without Dynamo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgellm.engine.scripted import ScriptedExecutor, ScriptTiming
from edgellm.engine.scripts import ReplyScript
from edgellm.runtime.llm import LLM
from edgellm.server.dynamo.handler import Handler
from edgellm.server.dynamo.kv_events import KvEvents
from edgellm.server.dynamo.requests import RequestReader
from edgellm.server.load import Load
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer


class CallerContext:
    """Stands in for Dynamo's `Context`: `stop` is what a caller that leaves does to it."""

    def __init__(self, name: str = "r1") -> None:
        self._name = name
        self._stopped = asyncio.Event()

    def id(self) -> str:
        return self._name

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def async_killed_or_stopped(self) -> Any:
        return self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


@dataclass
class Served:
    """A model and its handler. `published` are the lists of KV events, once `events` is started."""

    llm: LLM
    handler: Handler
    events: KvEvents
    load: Load
    published: list[list[dict[str, Any]]] = field(default_factory=list)

    def ask(self, prompt: list[int], **fields: Any) -> list[dict[str, Any]]:
        """All chunks of one answer."""

        async def collect() -> list[dict[str, Any]]:
            return [chunk async for chunk in self.handler.generate({"token_ids": prompt, **fields}, CallerContext())]

        return asyncio.run(collect())


Make = Callable[..., Served]


@pytest.fixture
def serve(tokenizer: tuple[Tokenizer, ChatRenderer]) -> Iterator[Make]:
    """Makes models: `serve(reply, slots=…, timing=…, on_call=…, **engine_options)`."""
    opened: list[LLM] = []
    tokens = tokenizer[0]

    def make(
        reply: str = "Hello there.",
        *,
        slots: int = 2,
        timing: ScriptTiming | None = None,
        on_call: Any = None,
        **options: Any,
    ) -> Served:
        ids = tokens.encode(reply, allow_special=True)
        script = ReplyScript(ids, eos=tokens.eos_token_ids[0], vocab_size=tokens.vocab_size)
        executor = ScriptedExecutor(
            script, vocab_size=tokens.vocab_size, slots=slots, max_tokens=1024, timing=timing, on_call=on_call
        )
        sizes = {"cache_bytes": 1 << 24, "snapshot_bytes": 1 << 24, "speculation": None}
        llm = LLM.from_parts(executor, *tokenizer, **{**sizes, **options})
        opened.append(llm)
        published: list[list[dict[str, Any]]] = []
        events = KvEvents(llm.engine.cache, llm.info.block_tokens, published.append)
        load = Load(1 << 30)
        handler = Handler(llm, RequestReader(llm, tokens.eos_token_ids), load, events)
        return Served(llm, handler, events, load, published)

    yield make
    for llm in opened:
        llm.close()


@pytest.fixture
def caller() -> type[CallerContext]:
    return CallerContext
