"""The bytes of the MLCommons `endpoints` client: JSON as its encoder writes it, HTTP/1.1 by hand, its SSE reading.

What must stay true: `encode_json` and `request_bytes` equal the harness byte for byte (a test holds the digest of all
recorded requests), and `read_frames` accepts and drops exactly what the harness accepts and drops.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

CHAT_PATH = "/v1/chat/completions"
MODELS_PATH = "/v1/models"
_FRAME = re.compile(rb"data:\s*(\{[^\n]+\})")


def encode_json(value: Any) -> bytes:
    """Compact JSON, UTF-8 unescaped, floats in shortest form with a bare exponent (``1e-7``, ``1e22``)."""
    parts: list[str] = []
    _encode(value, parts)
    return "".join(parts).encode("utf-8")


def _encode(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif isinstance(value, float):
        parts.append(_float(value))
    elif isinstance(value, Mapping):
        parts.append("{")
        for index, (key, item) in enumerate(value.items()):
            parts.append(("," if index else "") + encode_basestring(key) + ":")
            _encode(item, parts)
        parts.append("}")
    elif isinstance(value, (list, tuple)):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            _encode(item, parts)
        parts.append("]")
    else:
        parts.append(json.dumps(value))


def _float(value: float) -> str:
    text = json.dumps(value, allow_nan=False)
    mantissa, mark, exponent = text.partition("e")
    if not mark:
        return text
    if exponent == "-05":  # the encoder writes 1e-5 in full, smaller ones with an exponent
        sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
        return f"{sign}0.0000{digits.replace('.', '')}"
    return f"{mantissa}e{int(exponent)}"


def request_bytes(
    host: str,
    port: int,
    body: Mapping[str, Any],
    *,
    path: str = CHAT_PATH,
    api_key: str | None = None,
    session_id: str | None = None,
) -> bytes:
    """A whole POST request, headers in the harness's order and nothing more."""
    payload = encode_json(body)
    host_value = host if port in (80, 443) else f"{host}:{port}"
    lines = [f"POST {path} HTTP/1.1", f"Host: {host_value}"]
    if api_key is not None:
        lines.append(f"Authorization: Bearer {api_key}")
    lines.append("Content-Type: application/json")
    lines.append(f"Accept: {'text/event-stream' if body.get('stream') else 'application/json'}")
    if session_id is not None:
        lines.append(f"X-Session-ID: {session_id}")
    lines.append(f"Content-Length: {len(payload)}")
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + payload


@dataclass(frozen=True, slots=True)
class Frame:
    """What the harness reads of one SSE frame: `choices[0]`, and (ours only) the usage it ignores."""

    delta: Mapping[str, Any] | None
    finish_reason: str | None
    usage: Mapping[str, Any] | None


def read_frames(batch: bytes) -> tuple[list[Frame], str | None]:
    """Frames of one network batch of complete events, and a warning when a malformed one dropped the rest of it."""
    frames: list[Frame] = []
    for document in _FRAME.findall(batch):
        try:
            frames.append(_frame(json.loads(document)))
        except ValueError as error:
            return frames, f"skipping malformed SSE batch ({error})"
    return frames, None


def _frame(message: Any) -> Frame:
    if not isinstance(message, dict):
        raise ValueError("frame is not an object")
    choices = message.get("choices", [])
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError("choices is not a list of objects")
    usage = message.get("usage")
    if not choices:
        return Frame(None, None, usage)
    for choice in choices:
        _check_choice(choice)
    return Frame(choices[0].get("delta"), choices[0].get("finish_reason"), usage)


def _check_choice(choice: Mapping[str, Any]) -> None:
    if not isinstance(choice.get("finish_reason"), str | None):
        raise ValueError("finish_reason is not a string")
    delta = choice.get("delta")
    if delta is None:
        return
    if not isinstance(delta, dict):
        raise ValueError("delta is not an object")
    for key in ("role", "content", "reasoning_content", "reasoning"):
        if not isinstance(delta.get(key), str | None):
            raise ValueError(f"delta.{key} is not a string")
    calls = delta.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise ValueError("delta.tool_calls is not a list of objects")


def merge_tool_calls(deltas: list[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Merge call fragments as the harness does: by `index` (0 when missing), arguments joined, id and name replaced."""
    merged: dict[int, dict[str, Any]] = {}
    for part in deltas:
        call = merged.setdefault(part.get("index", 0), {"type": "function", "function": {"arguments": ""}})
        for key in ("id", "type"):
            if part.get(key):
                call[key] = part[key]
        function = part.get("function") or {}
        if function.get("name"):
            call["function"]["name"] = function["name"]
        if function.get("arguments"):
            call["function"]["arguments"] += function["arguments"]
    return tuple(merged[index] for index in sorted(merged))
