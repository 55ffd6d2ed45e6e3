"""GET /health and /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from edgellm.errors import EngineDeadError
from edgellm.server.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


def health_router(llm: LLM, metrics: Metrics) -> APIRouter:
    """/health is 200 only while the engine serves; otherwise 503 with the reason."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        try:
            stats = llm.engine.stats()
        except EngineDeadError as error:
            return JSONResponse({"status": "dead", "reason": str(error)}, status_code=503)
        return JSONResponse({"status": "ok", "running": stats.running, "waiting": stats.waiting})

    @router.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    return router
