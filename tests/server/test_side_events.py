"""Dispatch events beside the ordinary deltas: in time, once, and without changing anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import BASH, call
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.server.said import SaidCall
from edgellm.server.side_events import SideEvents
from edgellm.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

CHAT = "/v1/chat/completions"


def stream(running: Any, **body: Any) -> list[tuple[str, Any]]:
    """(event name, data) of a whole stream."""
    found = []
    text = running.post(stream=True, tools=[BASH], **body).text
    for part in text.split("\n\n")[:-1]:
        name, lines = "", part.split("\n")
        for line in lines:
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif value != "[DONE]":
                found.append((name, json.loads(value)))
    return found


def comparable(events: list[tuple[str, Any]]) -> list[Any]:
    """Ordinary deltas without what differs from request to request."""
    text = json.dumps([data["choices"] for name, data in events if not name])
    ids = dict.fromkeys(part.split('"')[0] for part in text.split('"id": "')[1:])
    for number, call_id in enumerate(ids):
        text = text.replace(call_id, f"id{number}")
    return list(json.loads(text))


REPLIES = [
    "Hello.",
    f"<think>\nplan\n</think>\n\nDoing it.\n{call('ls')}",
    call("ls -l") + "\n" + call('echo "{}" \\" }'),
    "<tool_call>\n<function=bash>\n</function>\n</tool_call>",  # no arguments
    f"{call('ls')[:-30]}",  # cut
    f"{call('a')}\nthen\n{call('b')[:-25]}",
]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("pace", [0.0, 0.002])
def test_ordinary_deltas_are_the_same(start: Any, script: Any, reply: str, pace: float) -> None:
    plain = start(script(reply=reply, decode_step_s=pace))
    with_events = start(script(reply=reply, decode_step_s=pace), tool_dispatch=True, reasoning_dispatch=True)

    def message(events: list[tuple[str, Any]]) -> Any:
        joined: dict[str, str] = {}
        for choices in comparable(events):
            delta = choices[0]["delta"]
            for part in delta.pop("tool_calls", []):
                where = f"call {part['index']}"
                joined[where] = joined.get(where, "") + part["function"].pop("arguments", "")
                if "id" in part:
                    joined[where + " head"] = json.dumps(part)
            for name, value in delta.items():
                joined[name] = joined.get(name, "") + value
            if choices[0]["finish_reason"]:
                joined["finish"] = choices[0]["finish_reason"]
        return joined

    assert message(stream(plain)) == message(stream(with_events))


def test_a_call_is_dispatched_before_its_last_delta(start: Any, script: Any) -> None:
    running = start(script(reply=REPLIES[2], decode_step_s=0.002), tool_dispatch=True)
    arguments: dict[int, str] = {}
    dispatched = {}
    for name, data in stream(running):
        if name:
            assert name == "tool_call_dispatch"
            assert data["choice_index"] == 0
            made = data["tool_call"]
            with pytest.raises(json.JSONDecodeError):  # not complete before
                json.loads(arguments.get(made["index"], ""))
            dispatched[made["index"]] = made
        else:
            for part in data["choices"][0]["delta"].get("tool_calls", []):
                arguments[part["index"]] = arguments.get(part["index"], "") + part["function"].get("arguments", "")
    assert [json.loads(made["function"]["arguments"]) for made in dispatched.values()] == [
        {"command": "ls -l"},
        {"command": 'echo "{}" \\" }'},
    ]
    assert {index: made["function"]["arguments"] for index, made in dispatched.items()} == arguments


@pytest.mark.parametrize(("reply", "calls"), [(REPLIES[3], ["{}"]), (REPLIES[4], []), (REPLIES[0], [])])
def test_calls_without_arguments_and_cut_ones(start: Any, script: Any, reply: str, calls: list[str]) -> None:
    running = start(script(reply=reply), tool_dispatch=True)
    body = {"max_tokens": 20} if reply is REPLIES[4] else {}
    found = [data["tool_call"]["function"]["arguments"] for name, data in stream(running, **body) if name]
    assert found == calls


def test_reasoning_is_dispatched_whole(start: Any, script: Any) -> None:
    running = start(script(reply=REPLIES[1], decode_step_s=0.002), reasoning_dispatch=True)
    events = stream(running)
    assert [(name, data) for name, data in events if name] == [
        ("reasoning_dispatch", {"index": 0, "reasoning_content": "plan"})
    ]
    place = next(n for n, (name, _) in enumerate(events) if name)
    assert all("reasoning_content" not in data["choices"][0]["delta"] for _, data in events[place + 1 :])


def test_nothing_is_sent_unless_asked_for(start: Any, script: Any) -> None:
    assert not [name for name, _ in stream(start(script(reply=REPLIES[1]))) if name]


PIECES = st.lists(st.integers(1, 5), max_size=40)
VALUES = st.recursive(
    st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8
)


class _Said:
    def __init__(self, arguments: str) -> None:
        self.calls = [SaidCall("c", "f", arguments)]


@given(st.dictionaries(st.text(), VALUES), PIECES, st.booleans())
@settings(max_examples=200)
def test_every_cut_finds_the_end_of_the_arguments(value: dict[str, Any], cuts: list[int], ascii_: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    events = SideEvents(0, _Said(text), tools=True, reasoning=True)  # type: ignore[arg-type]
    assert not list(events.before(ToolCallStart(0, "c", "f")))
    position = 0
    for size in [*cuts, len(text)]:
        piece = text[position : position + size]
        position += size
        found = list(events.before(ToolCallArguments(0, piece)))
        assert bool(found) == (bool(piece) and position >= len(text))
    assert not list(events.before(ToolCallEnd(0)))


def test_each_block_of_reasoning_is_an_event() -> None:
    events = SideEvents(3, _Said("{}"), tools=False, reasoning=True)  # type: ignore[arg-type]
    said = [ReasoningDelta("a"), ReasoningDelta("b"), ContentDelta("x"), ReasoningDelta("c")]
    found = [event.data for delta in said for event in events.before(delta)] + [e.data for e in events.block_ended()]
    assert found == [{"index": 3, "reasoning_content": "ab"}, {"index": 3, "reasoning_content": "c"}]
    assert not list(events.block_ended())
