"""An id for every request, the session it belongs to, one log line and one count when it ends.

The client's own `x-request-id` is kept when it is a plain word, else one is made; every answer carries it, and
`x-edgellm-session-id` where the client named a session. The layer adds nothing to the path of a streamed token but one
look at its kind.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.server.errors import speaks_anthropic
from edgellm.server.logs import current_request
from edgellm.server.metrics import Metrics
from edgellm.server.names import new_id
from edgellm.server.protocol import REQUEST_ID
from edgellm.server.sessions.identity import identify

access_log = logging.getLogger("edgellm.server.access")

_PLAIN = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
SESSION_ID = b"x-edgellm-session-id"
IDENTITY = "edgellm.identity"  # in scope["state"]: the session's, or None
HTTP_ID = "edgellm.request_id"  # in scope["state"]


class Trace:
    """The outermost layer.

    Args:
        paths: known ones; others count together.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        given = _header(scope, REQUEST_ID)
        request_id = given.decode("ascii") if _PLAIN.fullmatch(given) else new_id("req")
        identity = identify(scope["headers"])
        extra = [(REQUEST_ID, request_id.encode("ascii"))]
        if speaks_anthropic(scope):
            extra.append((b"request-id", extra[0][1]))
        details: dict[str, Any] = {}
        if identity is not None:
            details["session"] = ascii(identity.session_id)
            if identity.parent_id is not None:
                details["parent"] = ascii(identity.parent_id)
            extra.append((SESSION_ID, identity.session_id.encode()))
        scope.setdefault("state", {}).update({"log": details, IDENTITY: identity, HTTP_ID: request_id})

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        token = current_request.set(request_id)
        try:
            await self._app(scope, receive, watch)
        finally:
            path = scope["path"]
            self._metrics.http_requests.labels(path if path in self._paths else "other", str(status)).inc()
            _log(scope, status, time.perf_counter() - start)
            current_request.reset(token)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _log(scope: Scope, status: int, seconds: float) -> None:
    if not access_log.isEnabledFor(logging.INFO):
        return
    details: dict[str, Any] = dict(scope["state"]["log"])
    path = ascii(scope["path"])[1:-1][:200]
    rest = "".join(f" {key}={value}" for key, value in details.items())
    access_log.info(
        "%s %s %s %.1fms%s",
        scope["method"],
        path,
        status or "-",
        seconds * 1e3,
        rest,
        extra={
            "details": {
                "method": scope["method"],
                "path": path,
                "status": status,
                "duration_ms": round(seconds * 1e3, 1),
                **details,
            }
        },
    )
