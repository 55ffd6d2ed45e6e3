"""The worker beside Dynamo's own runtime: discovery by files, its client, its KV router, and leaving on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.decode.params import SamplingParams
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import Recipe
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.errors import EngineDeadError
from edgellm.models import shipped
from edgellm.runtime.llm import LLM
from edgellm.runtime.stepper import MAX_FAULTS
from edgellm.server.dynamo.settings import WorkerSettings, environment
from edgellm.server.dynamo.worker import Worker as DynamoWorker
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

pytest.importorskip("dynamo.runtime", reason="needs ai-dynamo-runtime (extra dynamo)")

PROMPT = list(range(100, 400))
GREEDY = {"temperature": 0.0}
WAIT_S = 60.0  # for what takes a moment; only a failure waits so long
BYTES = str(1 << 26)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = shipped("edge-tiny")
    assert checkpoint is not None
    out = tmp_path_factory.mktemp("bundle") / "edge-tiny.bundle"
    build_bundle(Checkpoint.open(checkpoint), out, Recipe(), force=False)
    return out


@pytest.fixture
def discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of discovery; this process and its children use it."""
    folder = tmp_path / "discovery"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("DYN_")]:
        monkeypatch.delenv(name)
    for name, value in environment({}, folder).items():
        monkeypatch.setenv(name, value)
    return folder


@dataclass
class Started:
    process: subprocess.Popen[str]
    log: Path

    async def stopped(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), WAIT_S)


Start = Callable[..., Awaitable[Started]]


@pytest.fixture
def start(bundle: Path, discovery: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts workers and waits until they are ready."""
    started: list[Started] = []

    async def begin(*options: str) -> Started:
        command = shutil.which("edgellm", path=str(Path(sys.executable).parent)) or "edgellm"
        log = tmp_path / f"worker{len(started)}.log"
        sizes = ["--threads", "1", "--cache-bytes", BYTES, "--snapshot-bytes", BYTES, "--model-dir", str(tmp_path)]
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [command, "worker", "--dynamo", str(bundle), *sizes, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        started.append(Started(process, log))
        assert process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), WAIT_S)
        assert "ready" in line, log.read_text()
        return started[-1]

    yield begin
    for worker in started:
        worker.process.kill()
        worker.process.wait()
        assert worker.process.stdout is not None
        worker.process.stdout.close()


@asynccontextmanager
async def runtime() -> AsyncIterator[Any]:
    """Dynamo's endpoint of the workers, in this process."""
    from dynamo.runtime import DistributedRuntime

    made = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    try:
        yield made.endpoint("dynamo.backend.generate")
    finally:
        made.shutdown()


async def answer(client: Any, context: Any = None, **fields: Any) -> list[dict[str, Any]]:
    """All chunks of one answer."""
    request = {"model": "edge-tiny", "token_ids": PROMPT, "sampling_options": GREEDY, **fields}
    stream = await client.generate(request, annotated=False, context=context)
    return [chunk async for chunk in stream]


def tokens(chunks: list[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk["token_ids"])


async def until(found: Callable[[], Awaitable[Any]]) -> Any:
    """The first result that is true."""
    async with asyncio.timeout(WAIT_S):
        while not (result := await found()):
            await asyncio.sleep(0.02)
    return result


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(steps)


def test_tokens_cache_and_refusals_through_dynamo(start: Start, bundle: Path) -> None:
    """What the library generates comes out; the router sees the cached blocks, each tenant's own only."""
    from dynamo.llm import KvRouter, KvRouterConfig
    from dynamo.llm.exceptions import InvalidArgument

    async def steps() -> None:
        await start()
        async with runtime() as endpoint:
            client = await endpoint.client()
            [worker_id] = await client.wait_for_instances()
            router = KvRouter(endpoint, 64, KvRouterConfig())

            async def cached(prompt: list[int], tenant: str | None) -> int:
                scores = await router.get_overlap_scores(prompt, cache_namespace=tenant)
                return sum(row["device_blocks"] for row in scores["workers"] if row["worker_id"] == worker_id)

            first = await answer(client, stop_conditions={"max_tokens": 20})
            assert tokens(first) == expected.token_ids
            assert first[-1]["finish_reason"] == "length"
            assert first[-1]["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            assert await until(lambda: cached(PROMPT, None)) == 4  # full blocks of 300 tokens
            again = await answer(client, stop_conditions={"max_tokens": 20})
            assert tokens(again) == expected.token_ids
            assert again[-1]["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 299}

            assert await cached(PROMPT, "tenant") == 0
            salted = await answer(client, stop_conditions={"max_tokens": 20}, routing={"cache_salt": "tenant"})
            assert tokens(salted) == expected.token_ids
            assert salted[-1]["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            assert await until(lambda: cached(PROMPT, "tenant")) == 4

            with pytest.raises(InvalidArgument, match=r"sampling_options\.n"):
                await answer(client, sampling_options={"n": 2})

    with LLM(bundle, threads=1, slots=1, cache_bytes=0) as llm:
        expected = llm.generate(PROMPT, SamplingParams(max_tokens=20))
    run(steps())


def test_a_cancelled_request_leaves_its_slot(start: Start) -> None:
    """With one slot, the second answer comes only when the first, of thousands of tokens, was stopped."""
    from dynamo.runtime import Context

    async def steps() -> None:
        await start("--slots", "1")
        async with runtime() as endpoint:
            client = await endpoint.client()
            await client.wait_for_instances()
            context, seen = Context(), 0
            request = {"token_ids": PROMPT, "sampling_options": GREEDY, "stop_conditions": {"ignore_eos": True}}
            async for chunk in await client.generate(request, annotated=False, context=context):
                seen += len(chunk["token_ids"])
                if seen > 10:
                    context.stop_generating()
            assert 10 < seen < 1000
            assert (await answer(client, stop_conditions={"max_tokens": 2}))[-1]["finish_reason"] == "length"

    run(steps())


def test_a_worker_leaves_before_it_stops(start: Start, discovery: Path) -> None:
    """On SIGTERM it goes out of discovery first, finishes what it has, and ends without an error."""

    async def steps() -> None:
        worker = await start()
        async with runtime() as endpoint:
            client = await endpoint.client()
            await client.wait_for_instances()
            stops = {"max_tokens": 400, "ignore_eos": True}
            request = {"token_ids": PROMPT, "sampling_options": GREEDY, "stop_conditions": stops}
            stream = await client.generate(request, annotated=False)
            chunks = [await anext(aiter(stream))]
            worker.process.send_signal(signal.SIGTERM)

            async def gone() -> bool:
                return not client.instance_ids()

            await until(gone)
            assert worker.process.poll() is None
            assert not list(discovery.glob("v1/mdc/*"))
            chunks += [chunk async for chunk in stream]
            assert chunks[-1]["finish_reason"] == "length"
            assert len(tokens(chunks)) == 400
        assert await worker.stopped() == 0, worker.log.read_text()

    run(steps())


def test_a_dead_engine_takes_its_worker_out(bundle: Path, discovery: Path, tmp_path: Path) -> None:
    """Otherwise frontends would go on sending it requests, and it would fail them all."""

    def fail(operation: str, _: int) -> None:
        if operation == "advance":
            raise RuntimeError("scripted fault")

    async def steps() -> None:
        tokenizer = Tokenizer.load(bundle)
        executor = ScriptedExecutor(vocab_size=tokenizer.vocab_size, on_call=fail)
        sizes = {"cache_bytes": 1 << 24, "snapshot_bytes": 1 << 24}
        with LLM.from_parts(executor, tokenizer, ChatRenderer.load(bundle, tokenizer), **sizes) as llm:
            settings = WorkerSettings(model="m", model_dir=tmp_path, shutdown_grace_s=0)
            worker = DynamoWorker(llm, Bundle.open(bundle), settings)
            running = asyncio.ensure_future(worker.run(asyncio.Event(), asyncio.Event()))
            async with runtime() as endpoint:
                client = await endpoint.client()
                await client.wait_for_instances()
                for _ in range(MAX_FAULTS):
                    assert (await answer(client))[-1]["finish_reason"].startswith("error: ")
                with pytest.raises(EngineDeadError, match="scripted fault"):
                    await asyncio.wait_for(running, WAIT_S)
        assert not list(discovery.glob("v1/mdc/*"))

    run(steps())
