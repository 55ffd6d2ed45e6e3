"""A server on a real socket in front of the real engine; only the model is scripted: its reply is given as text."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.decode.params import SpeculationParams
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.engine.scripts import ReplyScript
from edgellm.runtime.engine import Generation
from edgellm.runtime.llm import LLM
from edgellm.runtime.types import Request
from edgellm.server.app import create_app
from edgellm.server.run import Server, listen, make_server
from edgellm.server.settings import ServerSettings
from edgellm.text.chat import ChatRenderer
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
    """What the model does; it may be changed while the engine is idle. Times in seconds.

    `fail_in`: the executor call of this number from now (1: the next advance) and all later ones fail.
    """

    reply: str = "Hello there."
    decode_step_s: float = 0.0
    prefill_token_s: float = 0.0
    draft_step_s: float = 0.0
    fail_in: int | None = None
    requests: list[Request] = field(default_factory=list)

    def on_call(self, operation: str, _: int) -> None:
        if operation in ("advance", "verify") and self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in <= 0:
                raise RuntimeError("scripted fault")


class _Replies:
    """The executor's script: a fresh ReplyScript whenever the reply was changed."""

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._made: dict[str, ReplyScript] = {}

    def __getattr__(self, name: str) -> Any:
        reply = self._script.reply
        if reply not in self._made:
            ids = self._tokenizer.encode(reply, allow_special=True)
            eos = self._tokenizer.eos_token_ids[0]
            self._made[reply] = ReplyScript(ids, eos=eos, vocab_size=self._tokenizer.vocab_size)
        return getattr(self._made[reply], name)


@dataclass
class Running:
    """A server that is up. `http` is a client of it; `script` steers the model."""

    llm: LLM
    executor: ScriptedExecutor
    script: Script
    app: FastAPI
    server: Server
    port: int
    http: httpx.Client

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        if path.startswith("/v1/chat") and "messages" not in body:
            body["messages"] = [{"role": "user", "content": "hi"}]
        return self.http.post(path, json=body)

    def kill(self) -> None:
        """Let the engine die: every executor call fails."""
        self.script.fail_in = 0
        while self.llm.engine.stats().healthy:
            self.post()

    def held(self) -> tuple[Any, ...]:
        """What the engine holds: must not grow."""
        stats = self.llm.engine.stats()
        memory = self.executor.memory()
        return stats.running, stats.queued, stats.slots_free, memory["n_blocks"], memory["n_snapshots"]

    def wait_for(self, condition: Callable[[Any], bool], timeout_s: float = 5.0) -> bool:
        """Wait until the engine's statistics fulfil `condition`; False when they never do."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if condition(self.llm.engine.stats()):
                return True
            time.sleep(0.005)
        return False

    def settled(self, timeout_s: float = 5.0) -> bool:
        """Whether the engine becomes idle in time."""
        return self.wait_for(lambda stats: stats.running == 0 and stats.queued == 0, timeout_s)


Start = Callable[..., Running]


@pytest.fixture
def start(tokenizer: tuple[Tokenizer, ChatRenderer], monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start servers: `start(Script(...), slots=…, max_queue=…, speculation=…, **server_settings)`."""
    running: list[tuple[Running, threading.Thread]] = []

    def begin(
        script: Script | None = None,
        *,
        slots: int = 2,
        max_queue: int = 64,
        context: int = CONTEXT,
        prefill_chunk: int = 512,
        speculation: SpeculationParams | None = None,
        **settings: Any,
    ) -> Running:
        script = script or Script()
        executor = ScriptedExecutor(
            _Replies(script, tokenizer[0]),  # type: ignore[arg-type]
            vocab_size=tokenizer[0].vocab_size,
            slots=slots,
            max_tokens=context,
            timing=script,  # type: ignore[arg-type]
            on_call=script.on_call,
        )
        llm = LLM.from_parts(
            executor,
            *tokenizer,
            speculation=speculation,
            max_queue=max_queue,
            prefill_chunk=prefill_chunk,
            cache_bytes=1 << 27,
            snapshot_bytes=1 << 27,
        )
        submit = llm.engine.submit

        def recorded(request: Request) -> Generation:
            script.requests.append(request)
            return submit(request)

        monkeypatch.setattr(llm.engine, "submit", recorded)
        chosen = replace(ServerSettings(model="tiny", port=0, shutdown_grace_s=1), **settings)
        sock = listen(chosen)
        app = create_app(llm, chosen)
        server = make_server(app, chosen)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        port = sock.getsockname()[1]
        headers = {"Authorization": f"Bearer {chosen.api_keys[0]}".encode()} if chosen.api_keys else {}
        scheme = "http" if chosen.tls_cert is None else "https"
        verify = ssl.create_default_context(cafile=chosen.tls_cert) if chosen.tls_cert else True
        http = httpx.Client(base_url=f"{scheme}://127.0.0.1:{port}", timeout=30, headers=headers, verify=verify)
        running.append((Running(llm, executor, script, app, server, port, http), thread))
        return running[-1][0]

    yield begin
    for one, thread in running:
        one.http.close()
        one.server.should_exit = True
        one.llm.close()
        thread.join(10)


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@pytest.fixture
def tree(start: Start) -> Running:
    """The same with speculation: several tokens an output."""
    return start(speculation=SpeculationParams())


@pytest.fixture
def script() -> type[Script]:
    return Script
