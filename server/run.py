"""Running the server: socket, event loop, shutdown, and the lines that tell a user it is ready."""

from __future__ import annotations

import json
import logging
import shlex
import socket
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from edgellm.errors import ConfigError
from edgellm.server.app import create_app
from edgellm.server.settings import ServerSettings

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

log = logging.getLogger("edgellm.server")
_BACKLOG = 1024


def run_server(llm: LLM, settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM; running requests then get `shutdown_grace_s` to finish.

    Raises:
        ConfigError: the address cannot be bound.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.api_key is None and settings.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("serving %s without an API key: everyone who reaches this address can use the model", settings.host)
    with listen(settings) as sock:
        server = make_server(create_app(llm, settings), settings)
        port = sock.getsockname()[1]
        server.ready_text = ready_text(settings, port)
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
    """Uvicorn that says when it is ready."""

    ready_text = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.ready_text:
            print(self.ready_text, flush=True)


def make_server(app: FastAPI, settings: ServerSettings) -> Server:
    """The HTTP server for `app`; run it with `sockets=[listen(settings)]`."""
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="auto",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    return Server(config)


def ready_text(settings: ServerSettings, port: int) -> str:
    """The address, and a curl command that works from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    url = f"http://{host}:{port}/v1"
    body = {"model": settings.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    command = f"curl {url}/chat/completions -H 'Content-Type: application/json'"
    if settings.api_key is not None:
        command += ' -H "Authorization: Bearer $EDGELLM_API_KEY"'
    return f"edgellm is ready: {url} serves {settings.model!r}\ntry: {command} -d {shlex.quote(json.dumps(body))}"
