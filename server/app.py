"""The application: routes, and the way of a request from bytes to engine.

Reading and rendering run on worker threads, so that one long prompt does not hold up the streams of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.responses import Response

from edgellm.server.body import read_body
from edgellm.server.chat import ChatJob, read_chat
from edgellm.server.completions import CompletionJob, read_completion
from edgellm.server.errors import install_error_handlers
from edgellm.server.health import health_router
from edgellm.server.metrics import Metrics
from edgellm.server.middleware import Gate
from edgellm.server.models import models_router
from edgellm.server.settings import ServerSettings
from edgellm.server.sse import GenerationResponse

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

Reader = Callable[[bytes, "LLM", ServerSettings], ChatJob | CompletionJob]
_WORKERS = 2


def create_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """The HTTP API of one model. The caller keeps `llm` and closes it after the server has stopped."""
    workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="edgellm-prompt")
    metrics = Metrics(llm.engine.stats)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="edgellm", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    install_error_handlers(app, settings.retry_after_s)
    app.include_router(models_router(settings, llm.info.max_tokens))
    app.include_router(health_router(llm, metrics))

    async def run(http: Request, read: Reader) -> Response:
        body = await read_body(http, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
        job = await asyncio.get_running_loop().run_in_executor(workers, read, body, llm, settings)
        generation = llm.engine.submit(job.request)
        return GenerationResponse(generation, job.answer, settings, metrics, stream=job.stream)

    @app.post("/v1/chat/completions")
    async def chat_completions(http: Request) -> Response:
        return await run(http, read_chat)

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        return await run(http, read_completion)

    return app
