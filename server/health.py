"""GET /health and /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from edgellm.server.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


def health_router(llm: LLM, metrics: Metrics) -> APIRouter:
    """/health is 200 only while the engine serves; otherwise 503 with the reason."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        stats = llm.engine.stats()
        if not stats.healthy:
            return JSONResponse({"status": "dead", "reason": stats.error}, status_code=503)
        return JSONResponse({"status": "ok", "running": stats.running, "queued": stats.queued})

    @router.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    return router
