"""What surrounds every request: the key, the bound on requests in flight, the access log and the HTTP counters.

One plain ASGI layer; it adds nothing to the path of a streamed token. The log names routes, status, sizes and times and
never holds prompt or answer text.
"""

from __future__ import annotations

import hmac
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.server.errors import ApiError, as_api_error, overloaded
from edgellm.server.metrics import Metrics
from edgellm.server.settings import ServerSettings

access_log = logging.getLogger("edgellm.server.access")

OPEN_PATHS = frozenset({"/health"})  # answered without a key
_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions"})
_ROUTES = _GENERATING | OPEN_PATHS | {"/v1/models", "/metrics"}
_SESSION_CHARS = 64  # of X-Session-ID that are logged


class Gate:
    """Checks the key, counts requests in flight and logs each one when it ends."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._key = None if settings.api_key is None else settings.api_key.encode("utf-8")
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        scope.setdefault("state", {})["log"] = {}

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._dispatch(scope, receive, watch)
        except Exception as error:
            answer = as_api_error(error, retry_after_s=self._settings.retry_after_s)
            if status:  # too late for another answer: the server closes the connection
                raise
            await answer.response()(scope, receive, watch)
        finally:
            path = scope["path"]
            self._metrics.http_requests.labels(path if path in _ROUTES else "other", str(status)).inc()
            _log(scope, status, time.perf_counter() - start)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._authorised(scope):
            refusal = ApiError(
                401,
                "a valid API key is required: Authorization: Bearer KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal.response()(scope, receive, send)
            return
        if scope["path"] not in _GENERATING:
            await self._app(scope, receive, send)
            return
        if self._in_flight >= self._settings.max_in_flight:
            full = overloaded(f"{self._in_flight} requests are in flight already", self._settings.retry_after_s)
            await full.response()(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1

    def _authorised(self, scope: Scope) -> bool:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return True
        given = _header(scope, b"authorization")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _log(scope: Scope, status: int, seconds: float) -> None:
    if not access_log.isEnabledFor(logging.INFO):
        return
    details: dict[str, Any] = dict(scope["state"]["log"])
    session = _header(scope, b"x-session-id")
    if session:
        details["session"] = ascii(session[:_SESSION_CHARS].decode("latin-1"))
    path = ascii(scope["path"])[1:-1][:200]
    rest = "".join(f" {key}={value}" for key, value in details.items())
    access_log.info("%s %s %s %.1fms%s", scope["method"], path, status or "-", seconds * 1e3, rest)
