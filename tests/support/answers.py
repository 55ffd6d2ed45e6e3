"""Answers of the server as a client reads them: streams merged, whole bodies in the same form."""

from __future__ import annotations

import json
from typing import Any

import httpx

from edgellm.mlperf.wire import merge_tool_calls

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}, "times": {"type": "integer"}}},
    },
}


def call(command: str, name: str = "bash") -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=command>\n{command}\n</parameter>\n</function>\n</tool_call>"


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Chunks of a complete stream; checks the framing on the way."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "\r" not in response.text
    assert response.text.isascii()
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    chunks = []
    for part in parts[:-2]:
        assert part.startswith("data: {")
        assert "\n" not in part
        chunks.append(json.loads(part[len("data: ") :]))
    return chunks


def merged(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message a client builds from a stream."""
    content, reasoning, calls, finish = "", "", [], None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert finish is None, "a delta after finish_reason"
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        calls += delta.get("tool_calls") or []
        finish = choice["finish_reason"]
    return {
        "content": content,
        "reasoning": reasoning,
        "tool_calls": list(merge_tool_calls(calls)),
        "finish_reason": finish,
    }


def whole(body: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body["choices"]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "tool_calls": [{k: c[k] for k in ("type", "function", "id")} for c in message.get("tool_calls", [])],
        "finish_reason": choice["finish_reason"],
    }


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "tool_calls": [call["function"] for call in message["tool_calls"]]}


def both_ways(running: Any, **body: Any) -> dict[str, Any]:
    """The server's answer, streamed and whole: they agree in all but the ids of calls."""
    one = whole(running.post(**body).raise_for_status().json())
    streamed = merged(events(running.post(**body, stream=True)))
    for made in [*one["tool_calls"], *streamed["tool_calls"]]:
        assert made.pop("id").startswith("call_")
    assert streamed == one
    return one
