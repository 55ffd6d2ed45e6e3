"""Running the server: socket, event loop, shutdown, and the lines that tell a user it is ready.

Told to stop (SIGTERM, SIGINT), the server first drains: /health is 503 at once, new requests get 503 with Retry-After,
running ones have `shutdown_grace_s` to finish; the socket stays open meanwhile. Then it closes, and what still runs is
broken off. A second SIGINT skips the wait. A service manager that wants to know hears all this (`watchdog`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from edgellm.errors import ConfigError
from edgellm.server.app import create_app
from edgellm.server.keys import ONE_KEY
from edgellm.server.load import Load
from edgellm.server.logs import set_up_logging
from edgellm.server.protocol import Protocol
from edgellm.server.settings import ServerSettings
from edgellm.server.watchdog import Watchdog, watchdog_from

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

log = logging.getLogger("edgellm.server")
_BACKLOG = 1024


def run_server(llm: LLM, settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM; see the module's docstring.

    Raises:
        ConfigError: the address cannot be bound, or the certificate cannot be used.
    """
    set_up_logging(settings.log_format)
    if not settings.api_keys and settings.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("serving %s without an API key: everyone who reaches this address can use the model", settings.host)
    with listen(settings) as sock:
        server = make_server(create_app(llm, settings), settings)
        port = sock.getsockname()[1]
        server.ready_text = ready_text(settings, port)
        server.watchdog = watchdog_from(os.environ, llm.engine.stats)
        with _terminable():
            server.run(sockets=[sock])


def listen(settings: ServerSettings) -> socket.socket:
    """A bound, listening socket. Accepted connections inherit TCP_NODELAY: a delta leaves when it is written.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        info = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = socket.create_server(info[0][4][:2], family=info[0][0], backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Server(uvicorn.Server):
    """Uvicorn that says when it is ready and drains before it stops."""

    ready_text = ""
    watchdog: Watchdog | None = None

    def __init__(self, config: uvicorn.Config, load: Load, grace_s: float) -> None:
        super().__init__(config)
        self._load = load
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.ready_text:
            print(self.ready_text, flush=True)
        if self.started and self.watchdog is not None:
            self.watchdog.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._load.drain()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._load.drain()
        if self.watchdog is not None:
            self.watchdog.stopping()
        left = await self._load.drained(self._grace_s, unless=lambda: self.force_exit)
        self.config.timeout_graceful_shutdown = math.ceil(left)
        await super().shutdown(sockets)


def make_server(app: FastAPI, settings: ServerSettings) -> Server:
    """The HTTP server for `app`, which `create_app` made; run it with `sockets=[listen(settings)]`.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="auto",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert, tls_key: {settings.tls_cert}, {settings.tls_key}: {error}") from error
    return Server(config, app.state.load, settings.shutdown_grace_s)


@contextmanager
def _terminable() -> Iterator[None]:
    """Uvicorn repeats the signal that stopped it when it is done; without this a SIGTERM would kill the process then.

    What follows the server (saving prefixes, closing the engine) is to run.
    """
    if threading.current_thread() is not threading.main_thread():  # no signals here, in uvicorn either
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ready_text(settings: ServerSettings, port: int) -> str:
    """The address, and a curl command that works from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    url = f"{'http' if settings.tls_cert is None else 'https'}://{host}:{port}/v1"
    body = {"model": settings.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    command = f"curl {url}/chat/completions -H 'Content-Type: application/json'"
    if settings.api_keys:
        command += f' -H "Authorization: Bearer ${ONE_KEY}"'
    return f"edgellm is ready: {url} serves {settings.model!r}\ntry: {command} -d {shlex.quote(json.dumps(body))}"
