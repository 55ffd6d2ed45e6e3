"""Requests that agents send, and what other servers got wrong with them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from parsed import call
from response_events import assembled, response_events
from sockets import LONG

from edgellm.server.admission.settings import AdmissionSettings
from edgellm.server.responses.shelf import Shelf

BASH = {
    "type": "function",
    "name": "bash",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    "strict": False,
}
HI = {"role": "user", "content": "hi"}


def respond(running: Any, **body: Any) -> httpx.Response:
    answer: httpx.Response = running.post("/v1/responses", **{"input": "hi", **body})
    return answer


def test_reasoning_that_only_others_can_read(running: Any) -> None:
    items = [
        HI,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    ]
    answer = respond(running, input=items, store=False, include=["reasoning.encrypted_content"])
    assert answer.status_code == 200
    assert "a.txt" in running.llm.tokenizer.decode(running.script.requests[-1].prompt)


def test_three_calls_are_three_items(tree: Any) -> None:
    tree.script.reply = "\n".join(call("bash", command=name) for name in ("a", "b", "c"))
    events = response_events(respond(tree, tools=[BASH], stream=True))
    output = assembled(events)["output"]
    assert [json.loads(item["arguments"])["command"] for item in output] == ["a", "b", "c"]
    places = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert places == [0, 1, 2]
    assert len({item["call_id"] for item in output}) == 3


def test_no_tools_with_a_choice_and_a_result_in_parts(running: Any) -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "part"}]}
    items = [HI, {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"}, result]
    assert respond(running, input=items, tools=[], tool_choice="auto").status_code == 200
    assert "part" in running.llm.tokenizer.decode(running.script.requests[-1].prompt)


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_a_time(tree: Any, stream: bool) -> None:
    tree.script.reply = "\n".join(call("bash", command=name) for name in ("a", "b", "c")) + "\nDone."
    answer = respond(tree, tools=[BASH], parallel_tool_calls=False, stream=stream)
    body = assembled(response_events(answer)) if stream else answer.json()
    assert [item["type"] for item in body["output"]] == ["function_call"]
    assert (body["status"], body["output"][0]["status"]) == ("completed", "completed")
    assert tree.settled()


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": "emoji \\ud83d end"}',
        b'{"input": [{"role": "user", "content": [{"type": "input_text", "text": "\\ud83d"}]}]}',
        b'{"input": "\xff"}',
    ],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_text_that_is_none(running: Any, body: bytes, path: str) -> None:
    assert running.http.post(path, content=body).status_code == 400
    assert running.http.post(path, content=b'{"input": "nul \\u0000"}').status_code == 200


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_output_tokens", [0, -1, "5", 1.5, True, []]),
        ("temperature", [-1, 3, "x", True]),
        ("top_p", [0, 2, "x"]),
        ("stream", ["yes", 1]),
        ("store", ["no"]),
        ("parallel_tool_calls", ["no"]),
        ("instructions", [5, []]),
        ("tools", ["x", [1], {}]),
        ("text", ["x", {"format": "json"}]),
        ("reasoning", ["high", {"effort": 5}, {"summary": "long"}]),
        ("metadata", ["x", {str(n): "v" for n in range(17)}]),
        ("previous_response_id", [5]),
        ("input", [None, 5, {}, [[]], ""]),
    ],
)
def test_wrong_values_are_named(running: Any, field: str, values: list[Any]) -> None:
    for value in values:
        answer = respond(running, **{field: value})
        if field == "input" and value == "":
            assert answer.status_code == 200  # an empty turn is a turn
            continue
        assert answer.status_code == 400, value
        assert answer.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize("value", [None, 1e12, 10**12])
def test_a_limit_beyond_the_context_is_clamped(running: Any, value: Any) -> None:
    answer = respond(running, max_output_tokens=value)
    assert answer.status_code == (400 if isinstance(value, float) else 200)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_is_too_long(running: Any, stream: bool) -> None:
    answer = respond(running, input=[HI, {"role": "user", "content": "x " * 9000}], stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert error["message"].startswith("prompt is too long: ")


def test_a_preamble_is_removed_and_counted(running: Any) -> None:
    line = "x-anthropic-billing-header: cc_version=1;\n"
    prompts = set()
    for body in (
        {"instructions": "Be brief."},
        {"instructions": f"{line}Be brief."},
        {"input": [{"role": "developer", "content": f"{line}Be brief."}, HI]},
        {"input": [{"role": "system", "content": [{"type": "input_text", "text": f"{line}Be brief."}]}, HI]},
    ):
        assert respond(running, **body).status_code == 200
        prompts.add(running.script.requests[-1].prompt)
    assert len(prompts) == 1
    assert "preamble" in running.http.get("/metrics").text


def test_the_same_conversation_as_on_the_chat_surface(running: Any) -> None:
    """What the model sees does not depend on the surface: reasoning, calls, results, tools."""
    tool = {"type": "function", "function": {key: BASH[key] for key in ("name", "parameters")}}
    made = {"type": "function", "id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    chat = [
        {"role": "system", "content": "Be brief."},
        HI,
        {"role": "assistant", "content": "Looking.", "reasoning_content": "Hm.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    ]
    items = [
        HI,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    ]
    for thinking in (False, True):
        running.post(messages=chat, tools=[tool], enable_thinking=thinking)
        respond(running, input=items, instructions="Be brief.", tools=[BASH], enable_thinking=thinking)
        one, other = running.script.requests[-2:]
        assert one.prompt == other.prompt
        assert one.stable_lengths == other.stable_lengths
        assert one.cache == other.cache


def test_thinking_follows_the_effort(start: Any) -> None:
    running = start(enable_thinking=True)
    for body, thinking in (
        ({}, True),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": None}}, True),
        ({"enable_thinking": False}, False),
        ({"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}}, True),
    ):
        respond(running, **body)
        prompt = running.llm.tokenizer.decode(running.script.requests[-1].prompt)
        assert prompt.endswith("<think>\n") == thinking, body


def test_the_session_is_in_the_metadata(running: Any) -> None:
    headers = {"thread-id": "t1", "x-codex-parent-thread-id": "t0"}
    body = {"input": "hi", "metadata": {"mine": "1"}}
    answer = running.http.post("/v1/responses", json=body, headers=headers).json()
    assert answer["metadata"] == {"mine": "1", "session_id": "t1", "parent_session_id": "t0"}
    body["metadata"] = {"session_id": "own"}
    answer = running.http.post("/v1/responses", json=body, headers=headers).json()
    assert answer["metadata"] == {"session_id": "own", "parent_session_id": "t0"}


def test_keys_and_tenants_see_their_own_responses(start: Any) -> None:
    running = start(api_keys=("one", "two"))
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    made = running.http.post("/v1/responses", json={"input": "hi"}, headers=one).json()["id"]
    salted = running.http.post("/v1/responses", json={"input": "hi", "cache_salt": "s"}, headers=one).json()["id"]
    for headers, path, status in (
        (one, made, 200),
        (two, made, 404),
        (one, f"{made}?cache_salt=s", 404),
        (one, salted, 404),
        (one, f"{salted}?cache_salt=s", 200),
    ):
        assert running.http.get(f"/v1/responses/{path}", headers=headers).status_code == status
    header = {**one, "x-tenant-id": "s"}
    assert running.http.get(f"/v1/responses/{salted}", headers=header).status_code == 200
    assert running.http.get(f"/v1/responses/{made}", headers=header).status_code == 404
    body = {"input": "x", "previous_response_id": made}
    assert running.http.post("/v1/responses", json=body, headers=two).status_code == 404
    assert running.http.post("/v1/responses", json={**body, "cache_salt": "s"}, headers=one).status_code == 404
    assert running.http.delete(f"/v1/responses/{made}", headers=two).status_code == 404
    assert running.http.post(f"/v1/responses/{made}/cancel", headers=two).status_code == 404
    wrong = {"authorization": "Bearer three"}
    assert running.http.get(f"/v1/responses/{made}", headers=wrong).status_code == 401


def test_responses_survive_a_restart(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    first = start(responses_store=path)
    made = respond(first, input="One").json()["id"]
    first.http.close()
    first.server.should_exit = True
    second = start(responses_store=path)
    assert second.http.get(f"/v1/responses/{made}").json()["id"] == made
    assert respond(second, input="Two", previous_response_id=made).status_code == 200
    assert "One" in second.llm.tokenizer.decode(second.script.requests[-1].prompt)


def test_many_conversations_at_once(start: Any) -> None:
    running = start(slots=4)

    def talk(number: int) -> None:
        previous = None
        for turn in range(4):
            body = {"input": f"turn {turn} of {number}", "previous_response_id": previous, "stream": True}
            response = assembled(response_events(running.post("/v1/responses", **body)))
            previous = response["id"]
        items = running.http.get(f"/v1/responses/{previous}/input_items").json()["data"]
        assert items[0]["content"][0]["text"] == f"turn 3 of {number}"

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(talk, range(6)))
    assert running.settled()


def test_cancel_while_it_waits_for_a_slot(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02), slots=1)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(respond(running, max_output_tokens=60)))
    first.start()
    assert running.wait_for(lambda stats: stats.running == 1)
    second = threading.Thread(target=lambda: answers.append(respond(running)))
    second.start()
    assert running.wait_for(lambda stats: stats.queued == 1)
    found = (getattr(observer, "__self__", None) for observer in running.app.state.desk.observers)
    shelf = next(one for one in found if isinstance(one, Shelf))
    waiting = [name for name, one in shelf._running.items() if not one.answer.body()["output"]][-1]
    assert running.post(f"/v1/responses/{waiting}/cancel").json()["status"] == "cancelled"
    second.join(10)
    assert answers[0].json()["status"] == "cancelled"
    first.join(10)
    assert answers[1].json()["status"] == "incomplete"
    assert shelf._running == {}


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_while_admission_holds_it(start: Any, stream: bool) -> None:
    """A session counts with more than half of the snapshots: two never fit together."""
    settings = AdmissionSettings(snapshots_per_session=300, acting_hold_s=1e6, idle_hold_s=1e6)
    running = start(admission=settings)
    desk = running.app.state.desk

    def ask(session: str, answers: list[Any], **body: Any) -> None:
        headers = {"x-dynamo-session-id": session}
        answers.append(running.http.post("/v1/responses", json={"input": "hi", **body}, headers=headers))

    ask("first", [])
    answers: list[Any] = []
    held = threading.Thread(target=ask, args=("second", answers), kwargs={"stream": stream})
    held.start()
    assert running.wait_for(lambda _: desk.admission.stats().waiting_turns == 1)
    found = (getattr(observer, "__self__", None) for observer in desk.observers)
    (name,) = next(one for one in found if isinstance(one, Shelf))._running
    for _ in range(2):
        assert running.post(f"/v1/responses/{name}/cancel").json()["status"] == "cancelled"
    held.join(10)
    body = assembled(response_events(answers[0])) if stream else answers[0].json()
    assert (body["status"], body["output"], body["usage"]["output_tokens"]) == ("cancelled", [], 0)
    assert running.http.get(f"/v1/responses/{name}").json()["status"] == "cancelled"
    assert (desk.admission.stats().waiting_turns, running.held()[:3]) == (0, (0, 0, 2))


def test_a_client_that_leaves_leaves_nothing_behind(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02))
    with running.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    name = json.loads(line.removeprefix("data: "))["response"]["id"]
    assert running.settled()
    assert running.http.get(f"/v1/responses/{name}").status_code == 404


def test_what_is_being_made_is_not_deleted_but_after_a_cancel(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02))
    with running.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        name = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
        path = f"/v1/responses/{name}"
        refused = running.http.delete(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "response_in_progress")
        assert running.http.get(f"{path}/input_items").json()["data"][0]["role"] == "user"
        assert running.http.post(f"{path}/cancel").json()["status"] == "cancelled"
        assert json.loads(list(lines)[-1].removeprefix("data: "))["response"]["status"] == "cancelled"
    assert running.http.delete(path).json() == {"id": name, "object": "response", "deleted": True}
    assert running.http.get(path).status_code == running.http.delete(path).status_code == 404


def test_a_tenant_in_an_extension_is_not_passed_over(running: Any) -> None:
    body = {"nvext": {"cache_salt": "tenant"}, "max_tokens": 5, "messages": [HI]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = running.http.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("nvext: ")
    assert respond(running, nvext={"cache_salt": "tenant"}).json()["error"]["param"] == "nvext"
