"""The Python API: open a bundle, then generate, chat or stream, from ordinary or asynchronous code.

    with LLM("model.bundle") as llm:
        print(llm.generate("def fib(n):", SamplingParams(max_tokens=64)).text)
        print(llm.chat([{"role": "user", "content": "Hello"}], enable_thinking=False).content)

Several prompts in one call run at the same time. Everything goes through one engine, which the server uses too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast, overload

from edgellm.cache import plan_budgets
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.prediction import Prediction
from edgellm.engine.base import Executor, ExecutorInfo
from edgellm.engine.bundle import Bundle
from edgellm.engine.registry import open_executor
from edgellm.errors import QueueFullError, RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.runtime.engine import Engine, Generation
from edgellm.runtime.results import ChatResult, Collector, Result, parse_chat
from edgellm.runtime.settings import EngineSettings, Speculation
from edgellm.runtime.types import CacheParams, Output, Request
from edgellm.text.chat import ChatRenderer
from edgellm.text.dialects import AnswerParser, canonical, make_parser, visible_markers
from edgellm.text.grammars import Grammar
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars

DEFAULT_SLOTS = 4
Messages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int]  # text, whose control-token literals count as such, or token ids


class EngineOptions(TypedDict, total=False):
    """Settings of an `LLM` that do not depend on where its executor comes from."""

    speculation: Speculation  # "auto" (default): chosen by measured cost; a shape; None: off. Never changes the output
    cache_bytes: int | None  # for cached KV blocks; None: from the free memory; 0: no cache
    snapshot_bytes: int | None  # for recurrent snapshots; likewise
    cache_dir: str | Path | None  # shared prefixes are kept here across restarts
    retained_share: float  # of the cache that requests may retain above the default priority; default 0.5
    offload_bytes: int  # of the second tier, to which idle conversations can be offloaded; default 0: there is none
    offload_dir: str | Path | None  # where it is; None (default): in host memory
    prefill_chunk: int  # tokens prefilled between two decode steps; default 512
    max_queue: int  # requests that may wait for a slot; default 256
    dialect: str | None  # how the model writes tool calls, one of `edgellm.text.dialects`; None: as its template shows


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request may set besides its prompt and its sampling. See `edgellm.runtime.types.Request`.

    `grammar` (see `edgellm.text.grammars`) holds for the answer, not for its reasoning; `max_thinking_tokens` closes a
    reasoning block in time. `prediction` is text that the answer is expected to repeat: it makes drafts.
    """

    speculation: SpeculationParams | None = None
    cache: CacheParams = field(default_factory=CacheParams)
    priority: int = 0
    deadline_s: float | None = None
    grammar: Grammar | None = None
    max_thinking_tokens: int | None = None
    prediction: str = ""


class LLM:
    """A bundle opened for generation. Close it, or use it as a context manager.

    Args:
        bundle_path: folder made by `edgellm build`.
        context: tokens that a sequence can hold; None: the bundle's context.
        slots: sequences that run at the same time; None: 4.
        threads: CPU threads; None: the physical cores.
        options: see `EngineOptions`.

    Raises:
        BundleError: the bundle is broken or does not fit this installation.
        ConfigError: a setting is out of range, or the memory is not there.
    """

    def __init__(
        self,
        bundle_path: str | Path,
        *,
        context: int | None = None,
        slots: int | None = None,
        threads: int | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        bundle = Bundle.open(bundle_path)
        tokenizer = Tokenizer.load(bundle.path)
        renderer = ChatRenderer.load(bundle.path, tokenizer)
        executor = open_executor(
            bundle,
            slots=DEFAULT_SLOTS if slots is None else slots,
            context=context,
            threads=threads,
            speculation=options.get("speculation", "auto") is not None,
            cache_bytes=options.get("cache_bytes"),
            snapshot_bytes=options.get("snapshot_bytes"),
        )
        eos = {*bundle.manifest.eos_token_ids, *tokenizer.eos_token_ids}
        self._open(
            executor,
            tokenizer,
            renderer,
            eos,
            options,
            full_tree=bundle.manifest.speculation,
            recommended=bundle.manifest.sampling,
            warm_up=True,
        )

    @classmethod
    def from_parts(
        cls,
        executor: Executor,
        tokenizer: Tokenizer,
        renderer: ChatRenderer,
        *,
        eos: Collection[int] | None = None,
        **options: Unpack[EngineOptions],
    ) -> Self:
        """The same over an executor of one's own, which it takes over. `eos`: None: the tokenizer's."""
        made = cls.__new__(cls)
        ending = tokenizer.eos_token_ids if eos is None else eos
        made._open(
            executor,
            tokenizer,
            renderer,
            ending,
            options,
            full_tree=SpeculationParams(),
            recommended={},
            warm_up=False,
        )
        return made

    def _open(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        renderer: ChatRenderer,
        eos: Collection[int],
        options: EngineOptions,
        *,
        full_tree: SpeculationParams,
        recommended: Mapping[str, Any],
        warm_up: bool,
    ) -> None:
        self.recommended_sampling = recommended  # fields of `SamplingParams`, by the checkpoint's maker
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.constraints = Constraints(tokenizer, vocab_size=executor.info.vocab_size, eos=eos)
        self._numbers = count()
        try:
            self.dialect = canonical(options.get("dialect") or renderer.dialect)
            self.tool_grammars = ToolGrammars(self.dialect, tokenizer.split, tokenizer.added)
            spoken = visible_markers(self.dialect)
            budgets = plan_budgets(
                executor.info, block_bytes=options.get("cache_bytes"), snapshot_bytes=options.get("snapshot_bytes")
            )
            cache_dir, offload_dir = options.get("cache_dir"), options.get("offload_dir")
            settings = EngineSettings(
                block_budget=budgets.blocks,
                snapshot_budget=budgets.snapshots,
                speculation=options.get("speculation", "auto"),
                full_tree=full_tree,
                prefill_chunk=options.get("prefill_chunk", 512),
                max_queue=options.get("max_queue", 256),
                cache_dir=None if cache_dir is None else Path(cache_dir),
                retained_share=options.get("retained_share", 0.5),
                offload_bytes=options.get("offload_bytes", 0),
                offload_dir=None if offload_dir is None else Path(offload_dir),
                warm_up=warm_up,
            )
            self.engine = Engine(executor, tokenizer, settings, eos=eos, spoken=spoken)
        except BaseException:
            executor.close()
            raise

    @property
    def info(self) -> ExecutorInfo:
        """Limits and sizes: `max_tokens` is the context, `slots`, `vocab_size`, …"""
        return self.engine.info

    def close(self) -> None:
        """End what runs, save shared prefixes, free everything. Idempotent."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def parser(self, tools: Messages | None, *, thinking_open: bool, id_seed: str = "") -> AnswerParser:
        """A parser of one answer of this model; without tools, tool syntax is text. See `dialects.make_parser`."""
        return make_parser(
            self.dialect, tools or (), thinking_open=thinking_open, parse_tools=bool(tools), id_seed=id_seed
        )

    # -- whole answers

    @overload
    def generate(
        self,
        prompt: str | list[int] | tuple[int, ...],
        sampling: SamplingParams | None = ...,
        options: RequestOptions | None = ...,
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[Sequence[int]] | tuple[str, ...],
        sampling: SamplingParams | None = ...,
        options: RequestOptions | None = ...,
    ) -> list[Result]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
    ) -> Result | list[Result]:
        """Continue a prompt; a list of prompts gives the list of their results.

        Raises:
            RequestError: the request is invalid; names the field.
            QueueFullError, EngineDeadError: it cannot be served now, or no more.
            ExecutionError: it failed while it ran.
        """
        prompts, many = _prompts(prompt)
        requests = [self._text_request(one, sampling, options) for one in prompts]
        results: list[Result] = []
        flying: deque[Generation] = deque()
        for request in requests:
            while True:
                try:
                    flying.append(self.engine.submit(request))
                    break
                except QueueFullError:
                    if not flying:
                        raise
                    results.append(_collect(flying.popleft()))
        results.extend(_collect(generation) for generation in flying)
        return results if many else results[0]

    def chat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Messages | None = None,
        **template_kwargs: Any,
    ) -> ChatResult:
        """Answer a conversation.

        Args:
            tools: OpenAI tool definitions.
            template_kwargs: for the checkpoint's template, e.g. `enable_thinking=False`.

        Raises:
            As `generate`.
        """
        request, thinking_open = self._chat_request(messages, sampling, options, tools, template_kwargs)
        result = _collect(self.engine.submit(request))
        return parse_chat(result, self.parser(tools, thinking_open=thinking_open))

    # -- streams

    def stream(
        self,
        prompt: Prompt | Messages,
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Messages | None = None,
        **template_kwargs: Any,
    ) -> Generation:
        """Outputs as they come, of a prompt (as for `generate`) or of messages (as for `chat`).

        A request that fails while it runs ends with an output whose `finish_reason` is "error".
        """
        return self.engine.submit(self._request(prompt, sampling, options, tools, template_kwargs))

    # -- the same for asynchronous code; long prompts are tokenised off the event loop

    async def agenerate(
        self, prompt: Prompt, sampling: SamplingParams | None = None, options: RequestOptions | None = None
    ) -> Result:
        """`generate` for one prompt; use `asyncio.gather` for several."""
        request = await asyncio.to_thread(self._text_request, prompt, sampling, options)
        return await _acollect(self.engine.submit(request))

    async def achat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Messages | None = None,
        **template_kwargs: Any,
    ) -> ChatResult:
        """`chat`."""
        request, thinking_open = await asyncio.to_thread(
            self._chat_request, messages, sampling, options, tools, template_kwargs
        )
        result = await _acollect(self.engine.submit(request))
        return parse_chat(result, self.parser(tools, thinking_open=thinking_open))

    async def astream(
        self,
        prompt: Prompt | Messages,
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Messages | None = None,
        **template_kwargs: Any,
    ) -> AsyncIterator[Output]:
        """`stream`. Closing the iterator early cancels the request."""
        request = await asyncio.to_thread(self._request, prompt, sampling, options, tools, template_kwargs)
        generation = self.engine.submit(request)
        try:
            async for output in generation:
                yield output
        finally:
            generation.cancel()

    # -- requests

    def _request(
        self,
        prompt: Prompt | Messages,
        sampling: SamplingParams | None,
        options: RequestOptions | None,
        tools: Messages | None,
        template_kwargs: Mapping[str, Any],
    ) -> Request:
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
            return self._chat_request(cast(Messages, prompt), sampling, options, tools, template_kwargs)[0]
        if tools is not None or template_kwargs:
            raise RequestError("tools and template arguments need messages, not a prompt", param="tools")
        return self._text_request(cast(Prompt, prompt), sampling, options)

    def _text_request(self, prompt: Prompt, sampling: SamplingParams | None, options: RequestOptions | None) -> Request:
        ids = self.tokenizer.encode(prompt, allow_special=True) if isinstance(prompt, str) else prompt
        return self._finished_request(tuple(ids), None, sampling, options)

    def _chat_request(
        self,
        messages: Messages,
        sampling: SamplingParams | None,
        options: RequestOptions | None,
        tools: Messages | None,
        template_kwargs: Mapping[str, Any],
    ) -> tuple[Request, bool]:
        """(request, whether the answer begins inside a thinking block)."""
        rendered = self.renderer.render(messages, tools=tools, **template_kwargs)
        thinking = rendered.thinking_open
        request = self._finished_request(
            rendered.token_ids,
            rendered.stable_lengths,
            sampling,
            options,
            thinking_open=thinking,
            head_length=rendered.head_length,
        )
        return request, thinking

    def _finished_request(
        self,
        prompt: tuple[int, ...],
        stable_lengths: tuple[int, ...] | None,
        sampling: SamplingParams | None,
        options: RequestOptions | None,
        *,
        thinking_open: bool = False,
        head_length: int | None = None,  # None: not a conversation
    ) -> Request:
        chosen = options or RequestOptions()
        return Request(
            id=f"local-{next(self._numbers)}",
            prompt=prompt,
            sampling=sampling or SamplingParams(),
            speculation=chosen.speculation,
            cache=chosen.cache if head_length is None else chosen.cache.by_prompt_part(head_length),
            stable_lengths=stable_lengths,
            priority=chosen.priority,
            deadline_s=chosen.deadline_s,
            constraint=self.constraints.make(
                chosen.grammar,
                param="grammar",
                thinking_open=thinking_open,
                max_thinking_tokens=chosen.max_thinking_tokens,
            ),
            prediction=Prediction.of(
                self.tokenizer.encode(chosen.prediction, allow_special=False), self.info.max_tokens
            ),
        )


def _prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts, and whether there were several."""
    if isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int)):
        return [cast(Prompt, prompt)], False
    if len(prompt) == 0:
        raise RequestError("prompt is empty", param="prompt", code="invalid_value")
    return list(cast(Sequence[Prompt], prompt)), True


def _collect(generation: Generation) -> Result:
    collector = Collector()
    for output in generation:
        collector.add(output)
    return collector.result()


async def _acollect(generation: Generation) -> Result:
    collector = Collector()
    async for output in generation:
        collector.add(output)
    return collector.result()
