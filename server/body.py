"""From the wire to a JSON object: size and time limits, strict UTF-8, strict JSON.

Refused with 4xx: bodies over the limit, invalid UTF-8, anything that is not one JSON object, NaN and infinities,
numbers beyond double range, duplicate keys, nesting deeper than the limit, and lone surrogates (halves of a cut
emoji, which no tokenizer can take). A NUL character is an ordinary character.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from edgellm.errors import RequestError
from edgellm.server.errors import ApiError

MAX_DEPTH = 128  # unless the server's settings say otherwise


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole request body.

    Raises:
        ApiError: 415 when it is compressed, 413 when it is (or says it will be) over `max_bytes`, 408 when it does not
            arrive in time, 499 when the client left.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ApiError(415, f"content-encoding {encoding[:40]!r} is not supported", code="unsupported_encoding")
    too_large = ApiError(413, f"request body is larger than {max_bytes} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"request body did not arrive within {timeout_s:g} s", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise ApiError(499, "client closed the connection") from None
    return b"".join(parts)


def parse_object(body: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The JSON object in `body`, nested at most `max_depth` levels deep.

    Raises:
        RequestError: see the module's docstring; `code` is ``invalid_json`` unless a field can be named.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"body is not valid UTF-8 (byte {error.start})", code="invalid_json") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"body is not valid JSON: {error.msg} ({where})", code="invalid_json") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError(f"body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("body must be a JSON object", code="invalid_json")
    _check_tree(value, max_depth, surrogates=b"\\ud" in body or b"\\uD" in body)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RequestError(f"duplicate key {name[:100]!r} in body", code="invalid_json")
    return result


def _constant(name: str) -> NoReturn:
    raise RequestError(f"body is not valid JSON: {name} is not a number", code="invalid_json")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RequestError(f"number {text[:40]} is out of range", code="invalid_json")
    return value


def _too_deep(limit: int) -> RequestError:
    return RequestError(f"body is nested deeper than {limit} levels", code="invalid_json")


def _check_tree(root: dict[str, Any], max_depth: int, *, surrogates: bool) -> None:
    """Bound the depth; when the body holds surrogate escapes, look for one without its other half."""
    stack: list[tuple[Any, str, int]] = [(root, "", 1)]
    while stack:
        node, path, depth = stack.pop()
        if depth > max_depth:
            raise _too_deep(max_depth)
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, item in items:
            if isinstance(item, (dict, list)):
                stack.append((item, _join(path, key) if surrogates else "", depth + 1))
            if surrogates and (_lone(item) or _lone(key)):
                param = _join(path, key).encode("ascii", "backslashreplace").decode("ascii")
                raise RequestError(f"{param} contains a lone surrogate", param=param, code="invalid_string")


def _join(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _lone(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)
