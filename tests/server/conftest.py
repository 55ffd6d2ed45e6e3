"""A server on a real socket in front of a scripted engine: the reply to every prompt is given as text."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import EngineDeadError, QueueFullError
from edgellm.runtime.types import Output, Request, Timing, TokenLogprob, Usage
from edgellm.server.app import create_app
from edgellm.server.run import Server, listen, make_server
from edgellm.server.settings import ServerSettings
from edgellm.text.chat import ChatRenderer
from edgellm.text.stream import TextStream
from edgellm.text.tokenizer import Tokenizer

CONTEXT = 4096


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, ChatRenderer]:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    make_checkpoint("tiny", folder)
    tokens = Tokenizer.load(folder)
    return tokens, ChatRenderer.load(folder, tokens)


@dataclass
class Script:
    """What the engine does. `reply` may depend on the request; times in seconds; `fail_at` counts outputs from 1."""

    reply: Callable[[Request], str] | str = "Hello there."
    eos: bool = True
    step_s: float = 0.0
    prefill_s: float = 0.0
    fail_at: int | None = None
    group: int = 3
    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True)
class Stats:
    healthy: bool
    error: str | None
    running: int
    queued: int


class FakeGeneration:
    def __init__(self, engine: FakeEngine, request: Request) -> None:
        self.id = request.id
        self._engine = engine
        self._request = request
        self._outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Output]:
        loop = asyncio.get_running_loop()
        while True:
            output = await loop.run_in_executor(self._engine.waiters, self._outputs.get)
            yield output
            if output.finish_reason is not None:
                return

    def run(self) -> None:
        start = time.monotonic()
        while not self._engine.slots.acquire(timeout=0.01):
            if self.cancelled.is_set():
                self._end("abort", 0, start, start)
                return
        self._engine.started(self)
        try:
            self._decode(start)
        finally:
            self._engine.slots.release()

    def _decode(self, start: float) -> None:
        script, request, tokenizer = self._engine.script, self._request, self._engine.tokenizer
        if self.cancelled.wait(script.prefill_s):
            return self._end("abort", 0, start, start)
        reply = script.reply if isinstance(script.reply, str) else script.reply(request)
        ids = tokenizer.encode(reply, allow_special=True) + list(tokenizer.eos_token_ids[:1]) * script.eos
        limit = request.sampling.max_tokens or len(ids)
        stream = TextStream(tokenizer, skip_special=True, stop=request.sampling.stop)
        first = time.monotonic()
        used = 0
        for number in itertools.count(1):
            if script.fail_at == number:
                return self._end("error", used, start, first, error="scripted fault")
            if self.cancelled.wait(script.step_s) if script.step_s else self.cancelled.is_set():
                return self._end("abort", used, start, first)
            part = ids[used : min(used + script.group, limit)]
            pushed = stream.push(part)
            text, stopped = pushed.text, pushed.stop
            used += len(part)
            over = stopped is not None or used >= len(ids) or used >= limit
            logprobs = tuple(
                TokenLogprob(token, -0.5, ((token, -0.5),)) for token in part if request.sampling.logprobs is not None
            )
            if over:
                reason = "stop" if stopped is not None or (script.eos and used >= len(ids)) else "length"
                text += "" if stopped is not None else stream.finish().text
                return self._end(reason, used, start, first, tuple(part), text, logprobs)
            self._outputs.put(Output(tuple(part), text, logprobs))
        return None

    def _end(
        self,
        reason: Any,
        used: int,
        start: float,
        first: float,
        ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> None:
        usage = Usage(len(self._request.prompt), 7, used, 4, 3, 2)
        timing = Timing(0.0, first - start, time.monotonic() - start)
        self._engine.ended(self)
        self._outputs.put(Output(ids, text, logprobs, reason, None, error, usage, timing))


class FakeEngine:
    def __init__(self, script: Script, tokenizer: Tokenizer, slots: int, max_waiting: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.script = script
        self.tokenizer = tokenizer
        self.slots = threading.Semaphore(slots)
        self.dead: str | None = None
        self.waiters = ThreadPoolExecutor(64)
        self._limit = slots + max_waiting
        self._lock = threading.Lock()
        self._waiting: set[FakeGeneration] = set()
        self._running: set[FakeGeneration] = set()

    def submit(self, request: Request) -> FakeGeneration:
        if self.dead:
            raise EngineDeadError(self.dead)
        with self._lock:
            if len(self._waiting) + len(self._running) >= self._limit:
                raise QueueFullError("the queue is full")
            generation = FakeGeneration(self, request)
            self._waiting.add(generation)
        self.script.requests.append(request)
        threading.Thread(target=generation.run, daemon=True).start()
        return generation

    def started(self, generation: FakeGeneration) -> None:
        with self._lock:
            self._waiting.discard(generation)
            self._running.add(generation)

    def ended(self, generation: FakeGeneration) -> None:
        with self._lock:
            self._waiting.discard(generation)
            self._running.discard(generation)

    def stats(self) -> Stats:
        return Stats(self.dead is None, self.dead, len(self._running), len(self._waiting))


@dataclass(frozen=True)
class FakeInfo:
    max_tokens: int = CONTEXT


@dataclass
class FakeLLM:
    engine: FakeEngine
    tokenizer: Tokenizer
    renderer: ChatRenderer
    info: FakeInfo = field(default_factory=FakeInfo)


@dataclass
class Running:
    """A server that is up. `http` is a client of it; `script` steers the engine."""

    llm: Any
    script: Script
    server: Server
    port: int
    http: httpx.Client

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        if path.startswith("/v1/chat") and "messages" not in body:
            body["messages"] = [{"role": "user", "content": "hi"}]
        return self.http.post(path, json=body)

    def kill(self, reason: str) -> None:
        """Let the engine die of `reason`."""
        self.llm.engine.dead = reason

    def held(self) -> tuple[int, ...]:
        """What the engine holds: must not grow."""
        stats = self.llm.engine.stats()
        return (stats.running, stats.queued)

    def settled(self, timeout_s: float = 5.0) -> bool:
        """Whether the engine is idle, waiting for it a little."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            stats = self.llm.engine.stats()
            if stats.running == 0 and stats.queued == 0:
                return True
            time.sleep(0.01)
        return False


Start = Callable[..., Running]


@pytest.fixture
def start(tokenizer: tuple[Tokenizer, ChatRenderer]) -> Iterator[Start]:
    """Start servers: `start(Script(...), slots=…, max_waiting=…, **settings)`."""
    running: list[tuple[Running, threading.Thread]] = []

    def begin(
        script: Script | None = None, *, slots: int = 2, max_waiting: int = 64, context: int = CONTEXT, **settings: Any
    ) -> Running:
        script = script or Script()
        llm = FakeLLM(FakeEngine(script, tokenizer[0], slots, max_waiting), *tokenizer, FakeInfo(context))
        chosen = replace(ServerSettings(model="tiny", port=0, shutdown_grace_s=1), **settings)
        sock = listen(chosen)
        server = make_server(create_app(llm, chosen), chosen)  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        port = sock.getsockname()[1]
        headers = {"Authorization": f"Bearer {chosen.api_key}".encode()} if chosen.api_key else {}
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, headers=headers)
        running.append((Running(llm, script, server, port, http), thread))
        return running[-1][0]

    yield begin
    for one, thread in running:
        one.http.close()
        one.server.should_exit = True
        thread.join(10)


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@pytest.fixture
def script() -> type[Script]:
    return Script
