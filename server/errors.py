"""Errors as HTTP answers: every one is ``{"error": {"message", "type", "param", "code"}}`` with the fitting status.

What must stay true: a fault of the request is 4xx and names the field; a fault of ours is 5xx and tells nothing of the
inside; a client that may retry is told when.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from edgellm.errors import EngineDeadError, QueueFullError, RequestError

log = logging.getLogger("edgellm.server")


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

    def response(self) -> Response:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, status_code=self.status, headers=self.headers)


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

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers) if error.headers else None
        return ApiError(error.status_code, str(error.detail), headers=headers).response()

    async def any_error(_: Request, error: Exception) -> Response:
        return as_api_error(error, retry_after_s=retry_after_s).response()

    app.add_exception_handler(HTTPException, http_error)
    for kind in (ApiError, RequestError, QueueFullError, EngineDeadError):
        app.add_exception_handler(kind, any_error)
