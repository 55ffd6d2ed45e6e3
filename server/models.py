"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse

from edgellm.server.names import unknown_model
from edgellm.server.settings import ServerSettings


def add_models(app: FastAPI, settings: ServerSettings, context: int) -> None:
    """`context`: prompt and answer tokens together, shown as `max_model_len` and `context_window`."""
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "edgellm",
            "root": settings.model,
            "max_model_len": context,
            "context_window": context,
        }

    @app.get("/v1/models")
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [card(name) for name in settings.names]})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> JSONResponse:
        if name not in settings.names:
            raise unknown_model(name)
        return JSONResponse(card(name))
