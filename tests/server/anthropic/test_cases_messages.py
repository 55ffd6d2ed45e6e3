"""Bugs of other servers' Messages APIs, as their users met them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from message_events import BASH, ask, both_ways, events, message

HI = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "u1", "name": "bash", "input": {"command": "ls"}}
USED = {"role": "assistant", "content": [USE]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
ROUTES = ("/v1/messages", "/v1/messages/count_tokens")


def prompt(running: Any) -> str:
    """The text of the last prompt."""
    text: str = running.llm.tokenizer.decode(running.script.requests[-1].prompt)
    return text


def test_tokens_are_counted_as_they_are_used(running: Any) -> None:
    body = {
        "model": "tiny",
        "system": [{"type": "text", "text": "s"}],
        "messages": [HI],
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
    }
    count = running.http.post("/v1/messages/count_tokens?beta=true", json=body)
    usage = running.http.post("/v1/messages?beta=true", json={**body, "max_tokens": 5}).json()["usage"]
    assert count.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_a_system_message_among_the_others(running: Any) -> None:
    late = {"role": "system", "content": [{"type": "text", "text": "Be concise."}]}
    assert ask(running, max_tokens=50, system="A", messages=[HI, late]).status_code == 200
    assert prompt(running).index("hi") < prompt(running).index("Be concise.")
    for messages in ([late, HI], [HI, USED, late, HI], [late, late, HI], [HI, {**late, "role": "developer"}]):
        assert ask(running, system="A", messages=messages, tools=[BASH]).status_code == 200


@pytest.mark.parametrize("content", [[{"type": "text", "text": "boom"}, IMAGE], "", None, "boom"])
def test_a_result_that_is_an_error_reaches_the_model_as_one(running: Any, content: Any) -> None:
    told = {"type": "tool_result", "tool_use_id": "u1", "is_error": True}
    if content is not None:
        told["content"] = content
    for failed in (True, False):
        messages = [HI, USED, {"role": "user", "content": [{**told, "is_error": failed}]}]
        assert ask(running, messages=messages, tools=[BASH]).status_code == 200
        assert ("Error:" in prompt(running)) == failed
        assert ("boom" in prompt(running)) == bool(content)
        assert ("[image left out" in prompt(running)) == isinstance(content, list)


def test_unknown_headers_and_fields_have_no_effect(running: Any) -> None:
    ask(running, thinking={"type": "adaptive"}, system="s")
    plain = prompt(running)
    mark = {"cache_control": {"type": "ephemeral", "scope": "global"}}
    body = {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "unheard_of": 1, **mark}]}],
        "system": [{"type": "text", "text": "s", **mark}],
        "context_management": {"edits": []},
        "metadata": {"user_id": "x"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "unheard_of": {"x": 1},
    }
    headers = {"anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14,unheard-of"}
    assert running.http.post("/v1/messages", json=body, headers=headers).status_code == 200
    assert prompt(running) == plain


def test_the_stop_sequence_that_matched_is_told(tree: Any) -> None:
    tree.script.reply = "A STOP B"
    answer = both_ways(tree, stop_sequences=["zzz", "STOP"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")
    assert answer["content"] == [{"type": "text", "text": "A "}]


def test_thinking_words_and_a_call_are_blocks_one_after_another(tree: Any) -> None:
    tree.script.reply = "r\n</think>\n\na\n<tool_call>\n<function=bash>\n</function>\n</tool_call>"
    found = events(ask(tree, stream=True, tools=[BASH], thinking={"type": "enabled", "budget_tokens": 2048}))
    starts = [event for event in found if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
    ]
    assert message(found)["stop_reason"] == "tool_use"  # which checks the order of the events


def test_a_schema_with_nulls_is_tolerated(running: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": None}}, "required": None}
    for more in ({}, {"tool_choice": {"type": "any"}}):
        assert ask(running, tools=[{"name": "f", "description": None, "input_schema": schema}], **more).is_success


@pytest.mark.parametrize("path", [*ROUTES, "/v1/models", "/"])
def test_keys_in_either_header(start: Any, path: str) -> None:
    running = start(api_keys=("right",))
    body = {"max_tokens": 5, "messages": [HI]}
    method = "HEAD" if path == "/" else "GET" if path == "/v1/models" else "POST"
    key, bearer = {"x-api-key": "right"}, {"Authorization": "Bearer right"}
    wrong: list[dict[str, str]] = [{}, {"x-api-key": "wrong"}, {"Authorization": "Bearer wrong"}]
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}") as client:
        for headers in (key, bearer, {**key, **bearer}):
            assert client.request(method, path, json=body, headers=headers).status_code == 200
        for headers in wrong:
            headers = {**headers, "anthropic-version": "2023-06-01"}
            response = client.request(method, path, json=body, headers=headers)
            assert response.status_code == 401
            if method != "HEAD":
                assert response.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("text", [rb"emoji \ud83d end", b"byte \xff end", rb"nul \u0000 end"])
def test_broken_text_is_refused_and_breaks_nothing(running: Any, path: str, text: bytes) -> None:
    for body in (
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "%b"}]}',
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "%b"}]}]}',
        b'{"max_tokens": 5, "system": "%b", "messages": [{"role": "user", "content": "hi"}]}',
    ):
        response = running.http.post(path, content=body % text)
        assert response.status_code == (200 if b"nul" in text else 400)
        if response.status_code == 400:
            assert response.json()["type"] == "error"
    assert ask(running).status_code == 200


def test_a_prompt_over_the_context_is_told_as_clients_know_it(running: Any) -> None:
    response = ask(running, messages=[{"role": "user", "content": "x " * 9000}])
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompt is too long: ")
    assert response.json()["error"]["message"].endswith(" tokens > 4095 maximum")
    near = [{"role": "user", "content": "x " * 1990}]
    answer = ask(running, messages=near, max_tokens=10**6)  # clamped
    assert answer.json()["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    "messages",
    [
        [USED, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u1", "content": "x"}]}],
        [{"role": "assistant", "content": "a"}],
        [{"role": "system", "content": "a"}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u1", "content": "x"}]}],
    ],
)
def test_a_conversation_without_a_question_is_served_or_named(running: Any, messages: list[Any]) -> None:
    response = ask(running, messages=messages, tools=[BASH])
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        assert "user" in response.json()["error"]["message"]
