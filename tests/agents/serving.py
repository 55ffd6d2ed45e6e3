"""Our server over the scripted model, with every exchange kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.bench.tiny import tiny_text
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.runtime.llm import LLM
from edgellm.server.app import create_app
from edgellm.server.run import listen, make_server
from edgellm.server.settings import ServerSettings

from .script import agent_script

MODEL = "edge-coder"
CONTEXT = 400_000  # agents send tens of thousands of words, which the small vocabulary makes several times longer


@dataclass(slots=True)
class Exchange:
    """One request and its answer as they passed the socket; header names in lower case.

    `status` stays 0 when the client left before the answer began; `complete` is False when it left before its end.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    complete: bool = False


class Recorder:
    """The outermost layer: appends to `exchanges` when a request arrives and fills it while it is answered."""

    def __init__(self, app: ASGIApp, exchanges: list[Exchange]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        exchange = Exchange(scope["method"], path, headers)
        self._exchanges.append(exchange)

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                exchange.body += message.get("body", b"")
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.answer_headers = {k.decode().lower(): v.decode("latin-1") for k, v in message["headers"]}
            elif message["type"] == "http.response.body":
                exchange.answer += message.get("body", b"")
                exchange.complete = not message.get("more_body", False)
            await send(message)

        await self._app(scope, received, sent)


@contextmanager
def served(exchanges: list[Exchange]) -> Iterator[str]:
    """The address of a server on loopback that lives as long as the context; it appends to `exchanges`."""
    tokenizer, renderer = tiny_text()
    executor = ScriptedExecutor(
        agent_script(tokenizer), vocab_size=tokenizer.vocab_size, slots=2, max_tokens=CONTEXT, max_chunk=8192
    )
    llm = LLM.from_parts(
        executor, tokenizer, renderer, speculation=None, prefill_chunk=8192, cache_bytes=1 << 30, snapshot_bytes=1 << 28
    )
    settings = ServerSettings(model=MODEL, port=0, shutdown_grace_s=1, enable_thinking=True)
    with llm, listen(settings) as sock:
        app = create_app(llm, settings)
        app.add_middleware(Recorder, exchanges=exchanges)
        server = make_server(app, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
