"""Answers of the Messages API as a client reads them: streams put together, whole bodies in the same form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
from pydantic_core import from_json

BASH = {
    "name": "bash",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}, "times": {"type": "integer"}}},
}
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_KINDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Events of a stream, pings too; checks the framing on the way."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.isascii()
    *parts, end = response.text.split("\n\n")
    assert end == ""
    found = []
    for part in parts:
        head, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        found.append(event)
    return found


def message(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that a strict client builds of a complete stream."""
    stream = [event for event in found if event["type"] != "ping"]
    assert [event["type"] for event in stream[-2:]] == ["message_delta", "message_stop"]
    first, *middle, delta, _ = stream
    assert first["type"] == "message_start"
    made = first["message"]
    assert (made["content"], made["stop_reason"], made["stop_sequence"]) == ([], None, None)
    return {**made, "content": content(middle), **delta["delta"], "usage": delta["usage"]}


def content(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of the events between a stream's first and its last ones: one is open at a time, in order."""
    made: list[dict[str, Any]] = []
    text = ""
    open_ = False
    for event in found:
        assert event["index"] == len(made) - 1 + (event["type"] == "content_block_start")
        if event["type"] == "content_block_start":
            assert not open_
            made.append(dict(event["content_block"]))
            open_, text = True, ""
            continue
        assert open_
        block = made[-1]
        if event["type"] == "content_block_stop":
            open_ = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = from_json(text, allow_partial=True) if text else {}
            else:
                assert block[block["type"]] == ""
                block[block["type"]] = text
            assert block.get("signature") != ""
        elif event["delta"]["type"] == "signature_delta":
            assert block["type"] == "thinking"
            block["signature"] = event["delta"]["signature"]
        else:
            assert block.get("signature", "") == ""
            assert event["delta"]["type"] == _KINDS[block["type"]]
            piece = event["delta"][_TEXTS[event["delta"]["type"]]]
            assert piece
            text += piece
    assert not open_
    return made


def ask(running: Any, **body: Any) -> httpx.Response:
    found: httpx.Response = running.post(
        "/v1/messages", **{"max_tokens": 200, "messages": [{"role": "user", "content": "hi"}], **body}
    )
    return found


def both_ways(running: Any, **body: Any) -> dict[str, Any]:
    """The answer, whole and streamed: they agree in all but ids and what came from the cache."""
    answers = [ask(running, **body).raise_for_status().json(), message(events(ask(running, **body, stream=True)))]
    for answer in answers:
        assert answer.pop("id").startswith("msg_")
        usage = answer["usage"]
        usage["prompt"] = usage.pop("input_tokens") + usage.pop("cache_read_input_tokens")
        for block in answer["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id").startswith("toolu_")
    assert answers[0] == answers[1]
    return answers[0]
