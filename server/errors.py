"""Errors as HTTP answers: ``{"error": {"message", "type", "param", "code"}}`` with the fitting status.

To a client of Anthropic's API (`speaks_anthropic`) they are ``{"type": "error", "error": {"type", "message"}}``.
What must stay true: a fault of the request is 4xx and names the field; a fault of ours is 5xx and tells nothing of the
inside; a client that may retry is told when.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from edgellm.errors import EngineDeadError, QueueFullError, RequestError

log = logging.getLogger("edgellm.server")

_ANTHROPIC_PATH: Final = "/v1/messages"
_ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    def body(self, *, anthropic: bool = False) -> dict[str, Any]:
        """The error as JSON, in the OpenAI API's form or in Anthropic's."""
        if anthropic:
            rest = "invalid_request_error" if self.status < 500 else "api_error"
            kind = _ANTHROPIC_KINDS.get(self.status, rest)
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, scope: Scope | None = None) -> Response:
        """The answer to the request of `scope`; without one, in the OpenAI API's form."""
        body = self.body(anthropic=scope is not None and speaks_anthropic(scope))
        return JSONResponse(body, status_code=self.status, headers=self.headers)


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the client expects Anthropic's forms: by the path, or by its `anthropic-version` header."""
    path = scope["path"]
    if path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/"):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def overloaded(message: str, retry_after_s: int) -> ApiError:
    """503 that asks the client to come again."""
    return ApiError(
        503, message, kind="overloaded_error", code="queue_full", headers={"Retry-After": str(retry_after_s)}
    )


def as_api_error(error: Exception, *, retry_after_s: int) -> ApiError:
    """The answer to an exception of the library. An unforeseen one is logged and becomes a bare 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, QueueFullError):
        return overloaded(str(error), retry_after_s)
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), kind="server_error", code="engine_dead")
    log.error("unforeseen error", exc_info=error)
    return ApiError(500, "internal error; see the server's log", kind="server_error", code="internal_error")


def install_error_handlers(app: FastAPI, retry_after_s: int) -> None:
    """Give routing errors (unknown path, wrong method) and escaped exceptions the same form."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers) if error.headers else None
        return ApiError(error.status_code, str(error.detail), headers=headers).response(request.scope)

    async def any_error(request: Request, error: Exception) -> Response:
        return as_api_error(error, retry_after_s=retry_after_s).response(request.scope)

    app.add_exception_handler(HTTPException, http_error)
    for kind in (ApiError, RequestError, QueueFullError, EngineDeadError):
        app.add_exception_handler(kind, any_error)
