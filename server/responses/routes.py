"""The routes of the Responses API beside `POST /v1/responses`: what is known by an id, and how long a prompt is.

`POST /v1/responses/compact` is not served (405): conversations are compacted by the client, with an ordinary request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from edgellm.server.caller import Caller
from edgellm.server.errors import ApiError
from edgellm.server.responses.shelf import Shelf, owner_of, unknown_response
from edgellm.server.responses.store import Item, Stored

Found = TypeVar("Found")
_PAGE: Final = 20
_MAX_PAGE: Final = 100
_PATH: Final = "/v1/responses/{response_id}"


def add_responses(app: FastAPI, shelf: Shelf, caller_of: Callable[[Request], Caller], workers: Executor) -> None:
    """Routes by a response's id. The owner's tenant, if any, is the header's, or `cache_salt` of the query.

    One that runs is looked at on the event loop, where it grows.

    Args:
        workers: where the store is read.
    """

    def asked(http: Request) -> tuple[str, bytes]:
        return http.path_params["response_id"], owner_of(caller_of(http), http.query_params.get("cache_salt"))

    async def off_loop(look: Callable[[str, bytes], Found], response_id: str, owner: bytes) -> Found:
        return await asyncio.get_running_loop().run_in_executor(workers, look, response_id, owner)

    async def find(http: Request) -> Stored:
        """A response, as it stands now if it runs."""
        response_id, owner = asked(http)
        if (running := shelf.running(response_id, owner)) is not None:
            return Stored(owner, running.answer.body(), running.items)
        return await off_loop(shelf.stored, response_id, owner)

    @app.get(_PATH)
    async def retrieve(http: Request) -> JSONResponse:
        if http.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise ApiError(400, "stream: a response that was made is given whole", param="stream")
        return JSONResponse((await find(http)).body)

    @app.delete(_PATH)
    async def delete(http: Request) -> JSONResponse:
        response_id, owner = asked(http)
        if shelf.running(response_id, owner) is not None:
            message = f"response {response_id[:100]!r} is being made; cancel it first"
            raise ApiError(400, message, param="response_id", code="response_in_progress")
        if not await off_loop(shelf.store.delete, response_id, owner):
            raise unknown_response(response_id, "response_id")
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @app.post(f"{_PATH}/cancel")
    async def cancel(http: Request) -> JSONResponse:
        response_id, owner = asked(http)
        if (running := shelf.running(response_id, owner)) is not None:
            return JSONResponse(running.answer.cancel())
        return JSONResponse((await off_loop(shelf.stored, response_id, owner)).body)

    @app.get(f"{_PATH}/input_items")
    async def input_items(http: Request) -> JSONResponse:
        page = _page(http)
        return JSONResponse(page((await find(http)).items))


def _page(http: Request) -> Callable[[list[Item]], dict[str, Any]]:
    """What `after`, `limit` and `order` of the query pick.

    Raises:
        ApiError: 400, naming the parameter.
    """
    query = http.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _wrong("order", "must be asc or desc")
    limit = query.get("limit", str(_PAGE))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_PAGE):
        raise _wrong("limit", f"must be 1 to {_MAX_PAGE}")

    def pick(items: list[Item]) -> dict[str, Any]:
        ordered = items if order == "asc" else items[::-1]
        start = 0
        if (after := query.get("after")) is not None:
            start = next((n + 1 for n, item in enumerate(ordered) if item["id"] == after), -1)
            if start < 0:
                raise _wrong("after", f"{after[:100]!r} is none of the items")
        data = ordered[start : start + int(limit)]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": start + len(data) < len(ordered),
        }

    return pick


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param} {problem}", param=param, code="invalid_value")
