"""The application: routes, and the way of a request from bytes to engine.

Reading and rendering run on worker threads, so that one long prompt does not hold up the streams of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgellm.server.answer import Job
from edgellm.server.anthropic.messages import count_tokens, read_messages
from edgellm.server.body import read_body
from edgellm.server.caller import Caller
from edgellm.server.chat import read_chat
from edgellm.server.completions import read_completion
from edgellm.server.dashboard.routes import add_dashboard
from edgellm.server.errors import install_error_handlers
from edgellm.server.gate import Gate
from edgellm.server.health import add_health
from edgellm.server.keys import given_keys
from edgellm.server.kv_events.stream import add_kv_events
from edgellm.server.lifecycle import Desk, Lifecycle
from edgellm.server.load import Load
from edgellm.server.metrics import Metrics
from edgellm.server.models import add_models
from edgellm.server.openapi import add_openapi
from edgellm.server.protocol import REQUEST_ID
from edgellm.server.render import render_chat
from edgellm.server.responses.read import count_input, read_response
from edgellm.server.responses.routes import add_responses
from edgellm.server.services import Services
from edgellm.server.sessions.hints import header_hints
from edgellm.server.settings import ServerSettings
from edgellm.server.sse import GenerationResponse
from edgellm.server.tokens import detokenize, tokenize
from edgellm.server.trace import HTTP_ID, IDENTITY, Trace

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

Read = TypeVar("Read")
_Reader = Callable[[bytes, "LLM", ServerSettings, Caller], Read]
_WORKERS = 2


def caller_of(http: Request) -> Caller:
    """Raises RequestError: a routing header has a value that it cannot have."""
    headers = http.headers.raw
    return Caller(getattr(http.state, IDENTITY), tuple(given_keys(headers)), header_hints(headers))


def create_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """The HTTP API of one model. The caller keeps `llm` and closes it after the server has stopped."""
    workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgellm-prompt")
    metrics = Metrics(llm.engine.stats)
    load = Load(settings.max_in_flight)
    services = Services(llm, settings, load)
    shelf = services.shelf

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with services.admission.running() if services.admission is not None else nullcontext():
            yield
        workers.shutdown(wait=False, cancel_futures=True)
        services.close()

    app = FastAPI(
        title="edgellm", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.load = load
    install_error_handlers(app, settings.retry_after_s)
    add_models(app, settings, llm.info.max_tokens)
    add_health(app, llm, metrics, load, settings.retry_after_s)

    desk = Desk(
        settings.model,
        lambda request: llm.engine.submit(request),
        lambda: llm.engine.queued,
        metrics,
        services.sessions,
        admission=services.admission,
    )
    metrics.watch("sessions", "Sessions", services.sessions.counts)
    if services.admission is not None:
        metrics.watch("admission", "Admission", services.admission.stats)
    app.state.desk = desk
    desk.observers.append(shelf.ended)
    if services.trace is not None:
        desk.observers.append(services.trace.record)
    add_dashboard(app, llm, settings, services)
    add_kv_events(app, services.mirror, settings, load, window_size=llm.info.max_tokens)

    async def read_off_loop(http: Request, read: _Reader[Read]) -> tuple[Read, Caller]:
        body = await read_body(http, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
        caller = caller_of(http)
        found = await asyncio.get_running_loop().run_in_executor(workers, read, body, llm, settings, caller)
        return found, caller

    def add_generating(path: str, read: _Reader[Job]) -> None:
        @app.post(path)
        async def generate(http: Request) -> Response:
            job, caller = await read_off_loop(http, read)
            if job.preamble:
                metrics.preambles.inc()
            course = Lifecycle(desk, job, caller, getattr(http.state, HTTP_ID))
            return GenerationResponse(course, job.answer, settings, stream=job.stream)

    def add_looking(path: str, read: _Reader[dict[str, Any]]) -> None:
        @app.post(path)
        async def look(http: Request) -> Response:
            response, _ = await read_off_loop(http, lambda *args: JSONResponse(read(*args)))
            return response

    add_generating("/v1/chat/completions", read_chat)
    add_generating("/v1/completions", read_completion)
    add_generating("/v1/messages", read_messages)
    add_generating("/v1/responses", partial(read_response, shelf=shelf))
    add_looking("/v1/chat/completions/render", render_chat)
    add_looking("/tokenize", tokenize)
    add_looking("/detokenize", detokenize)
    add_looking("/v1/messages/count_tokens", count_tokens)
    add_looking("/v1/responses/input_tokens", partial(count_input, shelf=shelf))
    add_responses(app, shelf, caller_of, workers)

    @app.head("/")
    async def greet() -> Response:
        """Claude Code looks whether anyone is there."""
        return Response()

    add_openapi(app, settings, llm.tokenizer.vocab_size)
    app.add_middleware(Gate, settings=settings, load=load)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID.decode(), "retry-after"),
        )
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    app.add_middleware(Trace, metrics=metrics, paths=paths)
    return app
