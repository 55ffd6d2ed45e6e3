"""Events of a trace: the fields of Dynamo's reference, and nothing that anyone wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.runtime.types import Timing, Usage
from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.records import admission_event, prompt_hashes, request_event

from .conftest import START_MS, MakeTurn, make_turn

BLOCK = 64


def event_of(**changes: Any) -> dict[str, Any]:
    event = request_event(make_turn(**changes), BLOCK)
    assert event is not None
    return event


def test_a_turn_of_a_session_has_the_fields_of_the_reference(turn: MakeTurn) -> None:
    identity = Identity("s-2", "s-1", "claude-code", True, {"x-claude-code-agent-id": ("s-2",)})
    event = event_of(identity=identity, trigger="tool_result", queue_depth=3, paused=True)
    hashes = event["request"]["replay"].pop("input_sequence_hashes")
    assert len(hashes) == 3  # 150 tokens: two full blocks and one of 22
    assert event == {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": START_MS + 1012,
        "event_source": "dynamo",
        "agent_context": {
            "session_id": "s-2",
            "parent_session_id": "s-1",
            "session_final": True,
            "agent_headers": {"x-claude-code-agent-id": ["s-2"]},
            "input_trigger": "tool_result",
        },
        "request": {
            "request_id": "chatcmpl-1",
            "x_request_id": "req-1",
            "model": "tiny",
            "input_tokens": 150,
            "output_tokens": 21,
            "cached_tokens": 120,
            "kv_hit_rate": 0.8,
            "request_received_ms": START_MS,
            "prefill_wait_time_ms": 150.0,
            "prefill_time_ms": 200.0,
            "ttft_ms": 350.0,
            "avg_itl_ms": 30.0,
            "total_time_ms": 950.0,
            "queue_depth": 3,
            "replay": {"trace_block_size": 64, "input_length": 150},
            "finish_reason_metadata": {
                "finish_reason": "tool_calls",
                "backend_finish_reason": "stop",
                "tool_calls": [{"choice_index": 0, "tool_call_index": 0, "id": "call-1", "name": "read"}],
                "choices": [{"choice_index": 0, "finish_reason": "tool_calls", "backend_finish_reason": "stop"}],
            },
        },
        "edgellm": {
            "surface": "chat",
            "outcome": "ok",
            "harness": "claude-code",
            "held_ms": 50.0,
            "paused": True,
            "stop_string": False,
            "accepted_length": 2.5,
            "verify_steps": 8,
            "drafted_tokens": 40,
            "accepted_tokens": 12,
        },
    }


def test_a_turn_without_a_session_has_no_context() -> None:
    event = event_of(identity=None)
    assert not event.keys() & {"event_source", "agent_context"}
    assert not event["request"].keys() & {"x_request_id", "model", "finish_reason_metadata"}
    assert event["request"]["replay"]["input_length"] == 150


def test_optional_fields_of_a_session_are_left_out() -> None:
    context = event_of(identity=Identity("s"))["agent_context"]
    assert context == {"session_id": "s", "input_trigger": "user_message"}


def test_hashes_are_those_of_the_reference() -> None:
    assert prompt_hashes(range(100, 132), 16) == [10823191264391160519, 4102179227871607950]
    assert len(prompt_hashes(range(545), 16)) == 35  # the last block, not full, is one


@given(st.lists(st.integers(0, 2**32 - 1), max_size=600), st.sampled_from((1, 4, 64)))
def test_hashes_of_a_prompt_begin_with_those_of_its_beginning(tokens: list[int], block: int) -> None:
    hashes = prompt_hashes(tokens, block)
    full = len(tokens) // 2 // block
    assert hashes[:full] == prompt_hashes(tokens[: full * block], block)
    assert len(hashes) == -(-len(tokens) // block)


@pytest.mark.parametrize(
    ("changes", "reason", "backend"),
    [
        ({"finish_reason": "stop", "tool_calls": ()}, "stop", "stop"),
        ({"finish_reason": "length"}, "length", "length"),
        ({"finish_reason": "abort", "outcome": "cancelled"}, "cancelled", "abort"),
        ({"finish_reason": None, "outcome": "cancelled"}, "cancelled", None),
        ({"finish_reason": "deadline", "outcome": "error"}, "deadline", "deadline"),
        ({"finish_reason": None, "outcome": "error"}, "error", None),
    ],
)
def test_finish_reasons(changes: dict[str, Any], reason: str, backend: str | None) -> None:
    finish = event_of(**changes)["request"]["finish_reason_metadata"]
    assert (finish["finish_reason"], finish.get("backend_finish_reason")) == (reason, backend)
    assert finish["choices"][0]["finish_reason"] == reason


def test_a_stop_token_is_told_and_a_stop_string_is_not() -> None:
    token = event_of(stop_reason=7)
    assert token["request"]["finish_reason_metadata"]["stop_reason"] == 7
    string = event_of(stop_reason="the client's words")
    assert "words" not in json.dumps(string)
    assert string["edgellm"]["stop_string"] is True


def test_a_turn_that_never_ended_says_that_its_output_is_unknown() -> None:
    event = event_of(usage=None, timing=None, outcome="cancelled", finish_reason=None)
    request = event["request"]
    assert (request["input_tokens"], request["output_tokens"]) == (150, 0)
    assert event["edgellm"]["output_unknown"] is True
    assert request["total_time_ms"] == 1012
    assert not request.keys() & {"cached_tokens", "kv_hit_rate", "ttft_ms", "prefill_time_ms", "avg_itl_ms"}


def test_a_turn_without_a_token_has_no_time_to_the_first() -> None:
    request = event_of(usage=Usage(150, 0, 0), timing=Timing(0.4, 0.4, 0.4))["request"]
    assert request["prefill_wait_time_ms"] == 450
    assert not request.keys() & {"ttft_ms", "prefill_time_ms", "avg_itl_ms"}


def test_several_choices_are_not_traced(turn: MakeTurn) -> None:
    assert request_event(turn(choices=2), BLOCK) is None


def test_an_admission_decision_is_an_event_of_its_own() -> None:
    assert admission_event(5, "s", "paused", {"used_tokens": 10, "decision": "x"}) == {
        "schema": "dynamo.request.trace.v1",
        "event_type": "edgellm_admission",
        "event_time_unix_ms": 5,
        "agent_context": {"session_id": "s"},
        "edgellm": {"used_tokens": 10, "decision": "paused"},
    }


@given(
    st.text(min_size=12),
    st.lists(st.integers(10**6, 2**31), min_size=1, max_size=200),
    st.sampled_from(("chat", "completion", "messages", "responses")),
    st.booleans(),
)
def test_no_text_and_no_token_reaches_a_line(text: str, tokens: list[int], surface: str, known: bool) -> None:
    """Whatever a turn's stop string and prompt are: two turns that differ in them alone differ in hashes alone."""
    given = {"surface": surface, "identity": Identity("s") if known else None}
    events = [
        event_of(prompt=tuple(tokens), stop_reason=text, **given),
        event_of(prompt=tuple(token + 1 for token in tokens), stop_reason="another string", **given),
    ]
    hashes = [event["request"]["replay"].pop("input_sequence_hashes") for event in events]
    assert events[0] == events[1]
    assert not set(hashes[0]) & set(tokens)
