"""A worker's life: join Dynamo, serve, leave.

Leaving goes in this order: the model and the endpoint are taken out of discovery, so that no frontend sends anything
new; what is inside has the grace to finish; what still runs then is ended with an error on which a frontend may move it
to another worker; the runtime stops. What must stay true: a request that arrived before the frontends saw the worker
leave is served; an engine that died takes its worker out of discovery.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConfigError, EngineDeadError
from edgellm.server.dynamo.handler import Handler
from edgellm.server.dynamo.kv_events import KvEvents, blocks_in_use
from edgellm.server.dynamo.model_folder import model_folder
from edgellm.server.dynamo.requests import RequestReader
from edgellm.server.dynamo.settings import REASONING_PARSERS, WorkerSettings
from edgellm.server.load import Load

if TYPE_CHECKING:
    from edgellm.engine.bundle import Bundle
    from edgellm.runtime.llm import LLM

log = logging.getLogger("edgellm.server.dynamo")
_REPORT_S: Final = 0.25  # between two looks at the engine
_NOTICE_S: Final = 0.5  # for frontends to see that the worker has left
_UNLIMITED: Final = 1 << 30  # the engine's queue is the bound


def check_installed() -> None:
    """Raises `ConfigError` when Dynamo's runtime is not there."""
    try:
        import dynamo.runtime  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--dynamo needs ai-dynamo-runtime: pip install 'edgellm[dynamo]' ({error})") from error


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the router is told of a worker, in tokens and blocks."""

    context: int
    block_tokens: int
    total_blocks: int
    slots: int
    batched_tokens: int

    @classmethod
    def of(cls, llm: LLM, prefill_chunk: int) -> Capacity:
        """The blocks are those of the prefix cache; without one, those that the slots hold."""
        info, cache = llm.info, llm.engine.cache.stats()
        in_slots = info.slots * -(-info.max_tokens // info.block_tokens)
        return cls(
            context=info.max_tokens,
            block_tokens=info.block_tokens,
            total_blocks=cache.block_budget_bytes // max(info.block_bytes, 1) or in_slots,
            slots=info.slots,
            batched_tokens=min(prefill_chunk, info.max_chunk),
        )


async def run_worker(llm: LLM, bundle: Bundle, settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT; a second one skips the grace. The environment is complete (`environment`).

    Raises:
        ConfigError: the frontend has no parser for the model's dialect, or the model's files cannot be written.
        EngineDeadError: the engine died.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with ExitStack() as cleanup:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
            cleanup.callback(loop.remove_signal_handler, number)
        await Worker(llm, bundle, settings).run(stop, hurry)


class Worker:
    """See the module's docstring."""

    def __init__(self, llm: LLM, bundle: Bundle, settings: WorkerSettings) -> None:
        self._llm = llm
        self._bundle = bundle
        self._settings = settings
        self._capacity = Capacity.of(llm, settings.prefill_chunk)
        self._load = Load(_UNLIMITED)

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish what is inside until `hurry` is set or the grace is over."""
        from dynamo.llm import KvEventPublisher, WorkerMetricsPublisher
        from dynamo.runtime import DistributedRuntime

        environ, capacity = os.environ, self._capacity
        folder = model_folder(self._bundle, self._settings.model_dir)
        config = self._runtime_config()
        runtime = DistributedRuntime(
            asyncio.get_running_loop(),
            environ["DYN_DISCOVERY_BACKEND"],
            environ["DYN_REQUEST_PLANE"],
            event_plane=environ["DYN_EVENT_PLANE"],
        )
        endpoint = runtime.endpoint(self._settings.path)
        publisher = KvEventPublisher(endpoint, kv_block_size=capacity.block_tokens, enable_local_indexer=True)
        metrics = WorkerMetricsPublisher()
        await metrics.create_endpoint(endpoint)
        events = KvEvents(self._llm.engine.cache, capacity.block_tokens, publisher.publish_batch)
        eos = {*self._bundle.manifest.eos_token_ids, *self._llm.tokenizer.eos_token_ids}
        handler = Handler(self._llm, RequestReader(self._llm, eos), self._load, events)
        serving = asyncio.ensure_future(
            endpoint.serve_endpoint(handler.generate, graceful_shutdown=True, metrics_labels=[("model", self.model)])
        )
        try:
            events.start()
            await self._register(endpoint, str(folder), config)
            try:
                print(f"edgellm is ready: worker {self._settings.path} serves {self.model!r}", flush=True)
                await self._watch(stop, serving, metrics, handler)
            finally:
                await self._leave(endpoint, hurry)
        finally:
            events.stop()
            await asyncio.to_thread(self._llm.close)  # ends what still runs
            publisher.shutdown()
            runtime.shutdown()
            await asyncio.wait([serving], timeout=_NOTICE_S)

    @property
    def model(self) -> str:
        return self._settings.model

    def _runtime_config(self) -> Any:
        from dynamo._core import get_reasoning_parser_names, get_tool_parser_names
        from dynamo.llm import ModelRuntimeConfig

        capacity, dialect = self._capacity, self._llm.dialect
        reasoning = REASONING_PARSERS.get(dialect)
        for name, known in ((dialect, get_tool_parser_names()), (reasoning, get_reasoning_parser_names())):
            if name is not None and name not in known:
                raise ConfigError(f"tool_parser: Dynamo's frontend has no parser {name!r}")
        config = ModelRuntimeConfig()
        config.context_length = capacity.context
        config.total_kv_blocks = capacity.total_blocks
        config.max_num_seqs = capacity.slots
        config.max_num_batched_tokens = capacity.batched_tokens
        config.tool_call_parser = dialect
        if reasoning is not None:
            config.reasoning_parser = reasoning
        return config

    async def _register(self, endpoint: Any, folder: str, config: Any) -> None:
        from dynamo.llm import ModelInput, ModelType, WorkerType, register_model

        await register_model(
            ModelInput.Tokens,
            ModelType.Chat | ModelType.Completions,
            endpoint,
            folder,
            self.model,
            worker_type=WorkerType.Aggregated,
            kv_cache_block_size=self._capacity.block_tokens,
            runtime_config=config,
            model_aliases=list(self._settings.aliases) or None,
            self_host_metadata=bool(os.environ.get("DYN_SYSTEM_PORT")),  # else the frontend reads the folder itself
        )

    async def _watch(self, stop: asyncio.Event, serving: asyncio.Future[None], metrics: Any, handler: Handler) -> None:
        """Report the load until told to stop; an endpoint or an engine that ends by itself is an error."""
        reported, engine = -1, self._llm.engine
        while not stop.is_set():
            used = blocks_in_use(handler.held.values(), self._capacity.block_tokens, self._capacity.total_blocks)
            if used != reported:
                metrics.publish(dp_rank=0, kv_used_blocks=used)
                reported = used
            if serving.done():
                serving.result()
                raise ConfigError(f"the endpoint {self._settings.path} was closed by the runtime")
            stats = engine.stats()
            if not stats.healthy:
                raise EngineDeadError(stats.error or "the engine is closed")
            try:
                await asyncio.wait_for(stop.wait(), _REPORT_S)
            except TimeoutError:
                continue

    async def _leave(self, endpoint: Any, hurry: asyncio.Event) -> None:
        from dynamo.llm import unregister_model

        log.info("leaving: %d requests inside", self._load.in_flight)
        await unregister_model(endpoint)
        await endpoint.unregister_endpoint_instance()
        await asyncio.sleep(_NOTICE_S)
        await self._load.drained(self._settings.shutdown_grace_s, unless=hurry.is_set)
