"""Streams of the Responses API as a client reads them: the order of events is checked, the response put together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx

Event = dict[str, Any]
LAST = ("response.completed", "response.incomplete", "response.failed")


def response_events(response: httpx.Response) -> list[Event]:
    """Events of a stream; checks the framing on the way."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "\r" not in response.text
    assert response.text.isascii()
    *parts, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for part in parts:
        if part.startswith(":"):
            continue
        head, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        found.append(event)
    return found


def assembled(events: Iterable[Event]) -> Event:
    """The response that the events tell, from deltas alone but for what the last event says of the whole.

    Asserts the order of events: a small state machine of what may follow what.
    """
    events = list(events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, in_progress, *items, last = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert created["response"]["status"] == "in_progress"
    assert (created["response"]["output"], created["response"]["usage"]) == ([], None)
    assert last["type"] in LAST
    output: list[Event] = []
    while items:
        assert items[0]["type"] == "response.output_item.added"
        assert items[0]["output_index"] == len(output)
        end = next(n for n, event in enumerate(items) if event["type"] == "response.output_item.done")
        added, *inside, done = items[: end + 1]
        item = added["item"]
        assert item["status"] == "in_progress"
        for event in inside:
            assert (event["item_id"], event["output_index"]) == (item["id"], len(output))
        built = _BUILT[item["type"]](item, inside)
        assert done["output_index"] == len(output)
        assert done["item"] == built | {"status": done["item"]["status"]}
        assert done["item"]["status"] in ("completed", "incomplete")
        output.append(done["item"])
        del items[: end + 1]
    ids = [item["id"] for item in output]
    assert len(set(ids)) == len(ids)
    whole: Event = last["response"]
    assert whole["status"] in ("completed", "incomplete", "cancelled", "failed")
    assert created["response"].keys() == whole.keys()
    return whole | {"output": output}


def _message(item: Event, events: list[Event]) -> Event:
    assert (item["role"], item["content"]) == ("assistant", [])
    added, *deltas, text_done, part_done = events
    assert added["type"] == "response.content_part.added"
    assert added["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    text = _joined(deltas, "response.output_text.delta")
    assert (text_done["type"], text_done["text"]) == ("response.output_text.done", text)
    assert (part_done["type"], part_done["part"]) == ("response.content_part.done", added["part"] | {"text": text})
    return item | {"content": [part_done["part"]]}


def _reasoning(item: Event, events: list[Event]) -> Event:
    assert (item["content"], item["summary"]) == ([], [])
    summary = [event for event in events if "summary_index" in event]
    added, *deltas, text_done, part_done = [event for event in events if "summary_index" not in event]
    assert (added["type"], added["part"]) == ("response.content_part.added", {"type": "reasoning_text", "text": ""})
    text = _joined(deltas, "response.reasoning_text.delta")
    assert (text_done["type"], text_done["text"]) == ("response.reasoning_text.done", text)
    part = {"type": "reasoning_text", "text": text}
    assert (part_done["type"], part_done["part"]) == ("response.content_part.done", part)
    if not summary:
        return item | {"content": [part]}
    first, *deltas, text_done, last = summary
    said = {"type": "summary_text", "text": text}
    assert (first["type"], first["part"]) == ("response.reasoning_summary_part.added", said | {"text": ""})
    assert _joined(deltas, "response.reasoning_summary_text.delta") == text
    assert (text_done["type"], text_done["text"]) == ("response.reasoning_summary_text.done", text)
    assert (last["type"], last["part"]) == ("response.reasoning_summary_part.done", said)
    return item | {"content": [part], "summary": [said]}


def _function_call(item: Event, events: list[Event]) -> Event:
    *deltas, done = events
    arguments = _joined(deltas, "response.function_call_arguments.delta")
    assert (done["type"], done["arguments"]) == ("response.function_call_arguments.done", arguments)
    assert item["arguments"] == ""
    return item | {"arguments": arguments}


def _custom_call(item: Event, events: list[Event]) -> Event:
    *deltas, done = events
    text = _joined(deltas, "response.custom_tool_call_input.delta")
    assert (done["type"], done["input"]) == ("response.custom_tool_call_input.done", text)
    assert item["input"] == ""
    return item | {"input": text}


def _joined(deltas: list[Event], kind: str) -> str:
    for delta in deltas:
        assert delta["type"] == kind
        assert delta["delta"]
    return "".join(delta["delta"] for delta in deltas)


_BUILT = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
}


def shape(response: Event) -> Event:
    """What does not differ from one response to the next: no ids, no times, no ids of calls."""
    items = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    kept = {key: value for key, value in response.items() if key not in ("id", "created_at", "completed_at")}
    return kept | {"output": items}
