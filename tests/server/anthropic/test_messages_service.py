"""The Messages API over HTTP: streams equal whole answers, and what they say of stops, usage, waits and faults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import call
from message_events import BASH, ask, both_ways, events, message
from sockets import LONG, connect, read_all, read_until

HI = {"role": "user", "content": "hi"}
THINK = {"type": "enabled", "budget_tokens": 1024}
ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


def refused(response: Any, status: int) -> str:
    """The message of an error in Anthropic's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == ERROR_TYPES[status]
    assert response.headers["request-id"] == response.headers["x-request-id"]
    told: str = body["error"]["message"]
    return told


REPLIES = {
    "words": ("Hello é😀 there.\n", ["text"], "end_turn"),
    "thinking": ("I think.\n</think>\n\nHello.", ["thinking", "text"], "end_turn"),
    "a call": (f"Looking.\n{call('ls')}", ["text", "tool_use"], "tool_use"),
    "calls with words between": (f"a\n{call('ls')}\nb\n{call('ps')}", ["text", "tool_use", "text", "tool_use"], None),
    "thinking and calls": (
        f"r\n</think>\n\n{call('ls')}\n{call('ps')}",
        ["thinking", "tool_use", "tool_use"],
        "tool_use",
    ),
    "nothing": ("", [], "end_turn"),
    "only thinking": ("I will edit.", ["thinking"], "end_turn"),
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("kind", ["running", "tree"])
def test_a_stream_is_the_whole_answer(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    running = request.getfixturevalue(kind)
    running.script.reply, kinds, reason = REPLIES[name]
    thinking = THINK if "thinking" in name else {"type": "disabled"}
    answer = both_ways(running, tools=[BASH], thinking=thinking)
    assert [block["type"] for block in answer["content"]] == kinds
    assert answer["stop_reason"] == (reason or "tool_use")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    inputs = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
    assert inputs == [{"command": "ls"}, {"command": "ps"}][: len(inputs)]


def test_every_length_of_an_answer_is_the_same_both_ways(tree: Any) -> None:
    """Cut in the reasoning, in words, in a call: what is complete of a call is told."""
    tree.script.reply = f"Let me see.\n</think>\n\nLooking.\n{call('ls -la')}"
    seen = set()
    for limit in range(1, 60):
        answer = both_ways(tree, tools=[BASH], thinking=THINK, max_tokens=limit)
        kinds = [block["type"] for block in answer["content"]]
        seen.add((answer["stop_reason"], *kinds))
        if "tool_use" in kinds and answer["stop_reason"] == "max_tokens":
            assert answer["content"][-1]["input"] in ({}, {"command": "ls -la"})
    assert ("max_tokens", "thinking", "text", "tool_use") in seen
    assert ("tool_use", "thinking", "text", "tool_use") in seen
    assert ("max_tokens", "thinking") in seen


def test_a_call_that_went_wrong_stays_a_block_and_can_go_back(running: Any) -> None:
    running.script.reply = "<tool_call>\n<function=bash>\n<parameter=command>\necho a\n</parameter>\n<parameter=x"
    answer = both_ways(running, tools=[BASH])
    assert [block["type"] for block in answer["content"]][-1] == "tool_use"
    back = {"role": "assistant", "content": [{**answer["content"][-1], "id": "toolu_1"}]}
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "bad input"}]}
    assert ask(running, messages=[HI, back, told], tools=[BASH]).status_code == 200


def test_one_call_where_several_are_not_wanted(running: Any) -> None:
    running.script.reply = f"{call('ls')}\n{call('ps')}"
    asked = {"tools": [BASH], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    for answer in (ask(running, **asked).json(), message(events(ask(running, **asked, stream=True)))):
        assert [block["input"] for block in answer["content"]] == [{"command": "ls"}]
        assert answer["stop_reason"] == "tool_use"
    assert running.settled()


def test_a_forced_call_has_the_form_of_one(tree: Any) -> None:
    tree.script.reply = "I would rather talk."
    answer = both_ways(tree, tools=[BASH], tool_choice={"type": "tool", "name": "bash"}, temperature=0, max_tokens=3000)
    assert {block["type"] for block in answer["content"]} == {"tool_use"}


def test_an_answer_by_a_schema(tree: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    answer = both_ways(tree, output_config={"format": {"type": "json_schema", "schema": schema}}, temperature=0)
    (block,) = answer["content"]
    assert json.loads(block["text"]) == {"a": 1}


def test_reasoning_is_closed_at_its_budget(running: Any) -> None:
    running.script.reply = "I think and think and think and think and think and think.\n</think>\n\nHello."
    answer = both_ways(running, thinking={"type": "enabled", "budget_tokens": 5}, temperature=0)
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] <= 9


def test_signatures_are_opaque_and_come_back(running: Any) -> None:
    running.script.reply = "I think.\n</think>\n\nHello."
    answer = both_ways(running, thinking=THINK)
    again = both_ways(running, thinking=THINK)
    assert answer["content"][0]["signature"] == again["content"][0]["signature"] != ""
    said = {"role": "assistant", "content": answer["content"]}
    assert ask(running, messages=[HI, said, HI], thinking=THINK).status_code == 200


def test_the_counts_of_a_prompt_add_up(running: Any) -> None:
    messages = [{"role": "user", "content": "a long prompt " * 150}]
    count = running.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
    first, second = (ask(running, messages=messages).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > count // 2
    stream = events(ask(running, messages=messages, stream=True))
    for usage in (first, second, stream[0]["message"]["usage"], message(stream)["usage"]):
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(usage[name] for name in names) == count
    assert message(stream)["usage"] == second
    assert stream[0]["message"]["usage"]["output_tokens"] == 0


def test_pings_while_the_client_waits(start: Any, script: Any) -> None:
    running = start(script(prefill_token_s=0.03), headers_after_s=0.1, ping_interval_s=0.1)
    found = events(ask(running, stream=True))
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "ping"]
    assert message(found)["content"] == [{"type": "text", "text": "Hello there."}]


def test_no_done_behind_the_last_event(running: Any) -> None:
    stream = ask(running, stream=True)
    assert "[DONE]" not in stream.text
    assert stream.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_a_fault_in_the_middle_is_an_error_event(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, fail_in=20, decode_step_s=0.02))
    with connect(running, {"stream": True, "max_tokens": 1000}, "/v1/messages") as sock:
        data = read_all(sock)
    *_, last = data.split(b"event: ")
    assert last.startswith(b"error\n")
    assert b'"type":"error","error":{"type":"api_error","message":"' in last
    assert b"message_stop" not in data
    assert not data.endswith(b"0\r\n\r\n")


def test_a_fault_before_the_first_word_is_a_status(start: Any, script: Any) -> None:
    running = start(script(fail_in=1))
    response = ask(running, stream=True)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"


def test_a_client_that_leaves_ends_the_generation(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.01))
    with connect(running, {"stream": True, "max_tokens": 3000}, "/v1/messages") as sock:
        read_until(sock, b"content_block_delta")
    assert running.settled()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_have_anthropics_form(start: Any, path: str) -> None:
    running = start(max_body_bytes=5000)
    post = running.http.post
    assert "not valid JSON" in refused(post(path, content=b"{"), 400)
    assert refused(running.post(path, max_tokens=5), 400) == "messages is required"
    assert "claude-y" in refused(running.post(path, model="claude-y", max_tokens=5, messages=[HI]), 404)
    response = post(path, content=b'{"x": "%b"}' % (b"x" * 6000))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    response = running.http.get(path)
    assert (response.status_code, response.json()["type"]) == (405, "error")
    refused(running.http.get(f"{path}/nope"), 404)
    assert "error" in running.http.get("/v1/nope").json()


def test_models_in_either_form(start: Any) -> None:
    running = start(aliases=("claude-x", "org/claude-y"))
    ours = {"anthropic-version": "2023-06-01"}
    listed = running.http.get("/v1/models?limit=1000", headers=ours).json()
    assert [card["id"] for card in listed["data"]] == ["tiny", "claude-x", "org/claude-y"]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("tiny", "org/claude-y", False)
    assert running.http.get("/v1/models/org/claude-y", headers=ours).json() == listed["data"][2]
    refused(running.http.get("/v1/models/nope", headers=ours), 404)
    assert running.http.get("/v1/models").json()["object"] == "list"
    assert running.http.get("/v1/models/claude-x").json()["object"] == "model"


def test_somebody_is_there(running: Any) -> None:
    response = running.http.head("/")
    assert (response.status_code, response.content) == (200, b"")


def test_a_full_server_is_overloaded(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.01), max_in_flight=1)
    with connect(running, {"stream": True, "max_tokens": 3000}, "/v1/messages") as sock:
        read_until(sock, b"message_start")
        response = ask(running)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "overloaded_error"
        assert int(response.headers["retry-after"]) >= 1
