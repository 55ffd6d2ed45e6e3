"""Who gets in: the key, the bound on requests in flight, the end of admission when the server drains.

Every POST is work and counts; what is only looked at (models, metrics, health) is served as long as the server runs.
An exception that nobody foresaw becomes an answer here.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.server.errors import ApiError, as_api_error, overloaded
from edgellm.server.keys import Keys
from edgellm.server.load import Load
from edgellm.server.settings import ServerSettings

OPEN_PATHS = frozenset({"/health", "/dashboard"})  # answered without a key; the dashboard's page holds no data


class Gate:
    """Stands in front of the routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, load: Load) -> None:
        self._app = app
        self._retry_after_s = settings.retry_after_s
        self._keys = Keys(settings.api_keys)
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(scope)) is not None:
            await refusal.response(scope)(scope, receive, send)
        elif scope["method"] == "POST":
            with self._load.inside():
                await self._answer(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] not in OPEN_PATHS and not self._keys.admit(scope["headers"]):
            return ApiError(
                401,
                "a valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] != "POST":
            return None
        if self._load.draining:
            headers = {"Retry-After": str(self._retry_after_s), "Connection": "close"}
            message = "the server is shutting down and takes no new requests"
            return ApiError(503, message, kind="server_error", code="shutting_down", headers=headers)
        if self._load.full:
            return overloaded(f"{self._load.in_flight} requests are in flight already", self._retry_after_s)
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            answer = as_api_error(error, retry_after_s=self._retry_after_s)
            if started:  # too late for another answer: the server closes the connection
                raise
            await answer.response(scope)(scope, receive, send)
