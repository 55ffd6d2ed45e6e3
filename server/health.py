"""GET /health, /ready and /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from edgellm.server.load import Load
from edgellm.server.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


def add_health(app: FastAPI, llm: LLM, metrics: Metrics, load: Load, retry_after_s: int) -> None:
    """/health is 200 while the engine serves and the server is not told to stop; /ready while it also has room.

    Otherwise they are 503 and say why: "dead", "draining" or "busy".
    """

    @app.get("/health")
    async def health() -> JSONResponse:
        stats = llm.engine.stats()
        if not stats.healthy:
            return JSONResponse({"status": "dead", "reason": stats.error}, status_code=503)
        status = "draining" if load.draining else "ok"
        body = {"status": status, "running": stats.running, "queued": stats.queued}
        return JSONResponse(body, status_code=503 if load.draining else 200)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        why = "dead" if not llm.engine.stats().healthy else "draining" if load.draining else "busy" if load.full else ""
        if why:
            headers = {"Retry-After": str(retry_after_s)}
            return JSONResponse({"status": why}, status_code=503, headers=headers)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.exposition(), headers={"content-type": CONTENT_TYPE})
