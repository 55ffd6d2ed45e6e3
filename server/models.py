"""GET /v1/models and /v1/models/{name}: in the OpenAI API's form, or in Anthropic's to who names its version."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from edgellm.server.errors import speaks_anthropic
from edgellm.server.names import unknown_model
from edgellm.server.settings import ServerSettings


def add_models(app: FastAPI, settings: ServerSettings, context: int) -> None:
    """`context`: prompt and answer tokens together."""
    created = int(time.time())
    created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def card(name: str, http: Request) -> dict[str, Any]:
        if speaks_anthropic(http.scope):
            return {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": created_at,
                "max_input_tokens": context,
                "max_tokens": context,
            }
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
    async def list_models(http: Request) -> JSONResponse:
        cards = [card(name, http) for name in settings.names]
        if speaks_anthropic(http.scope):
            ends = {"first_id": settings.names[0], "last_id": settings.names[-1]}
            return JSONResponse({"data": cards, "has_more": False, **ends})
        return JSONResponse({"object": "list", "data": cards})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str, http: Request) -> JSONResponse:
        if name not in settings.names:
            raise unknown_model(name)
        return JSONResponse(card(name, http))
