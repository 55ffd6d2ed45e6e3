"""Turns that agents take, over HTTP: thinking on and off, cut answers, histories with gaps, reuse from turn to turn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import BASH, both_ways, call, events, merged

USER = {"role": "user", "content": "hi"}
GREEDY = {"temperature": 0}


def cached(running: Any, **body: Any) -> int:
    usage = running.post(**body, **GREEDY).raise_for_status().json()["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


def test_an_answer_cut_in_its_reasoning_is_all_reasoning(tree: Any) -> None:
    tree.script.reply = "Suppose there were finitely many primes, and call them p. " * 9 + "\n</think>\n\nDone."
    answer = both_ways(tree, **GREEDY, enable_thinking=True, max_tokens=20)
    assert answer["reasoning"].startswith("Suppose there")
    assert (answer["content"], answer["finish_reason"]) == ("", "length")


def test_a_turn_that_ends_in_its_reasoning_is_empty(tree: Any) -> None:
    tree.script.reply = "I will now edit the file."
    answer = both_ways(tree, **GREEDY, enable_thinking=True, tools=[BASH])
    assert answer == {"content": "", "reasoning": tree.script.reply, "tool_calls": [], "finish_reason": "stop"}
    assert "empty_turns_total 2" in tree.http.get("/metrics").text


def test_without_thinking_everything_is_content(tree: Any) -> None:
    tree.script.reply = "It is 4."
    kwargs = {"enable_thinking": False}
    answer = both_ways(tree, **GREEDY, chat_template_kwargs=kwargs)
    assert (answer["content"], answer["reasoning"]) == ("It is 4.", "")
    assert "reasoning_content" not in tree.post(chat_template_kwargs=kwargs).json()["choices"][0]["message"]


@pytest.mark.parametrize("thinking", [True, False])
def test_calls_are_read_with_and_without_thinking(tree: Any, thinking: bool) -> None:
    tree.script.reply = ("I list.\n</think>\n\n" if thinking else "") + call("ls")
    answer = both_ways(tree, **GREEDY, tools=[BASH], enable_thinking=thinking)
    assert [json.loads(made["function"]["arguments"]) for made in answer["tool_calls"]] == [{"command": "ls"}]
    assert (answer["content"], answer["finish_reason"]) == ("", "tool_calls")


def test_a_stop_string_holds_in_the_reasoning_too_and_shows_no_tag(tree: Any) -> None:
    tree.script.reply = "9.11 or 9.8? It is 9.8.\n</think>\n\nIt is 9.8."
    answer = both_ways(tree, **GREEDY, enable_thinking=True, stop=["9.8"])
    assert answer["reasoning"] + answer["content"] == "9.11 or "
    assert answer["finish_reason"] == "stop"
    answer = both_ways(tree, **GREEDY, enable_thinking=True, stop=["think>"])
    assert "<" not in answer["content"]


@pytest.mark.parametrize("bad", ["<parameter=\nnote", "<parameter=ids: [1]", "<parameter=note="])
def test_a_call_with_a_malformed_part_goes_back_into_the_next_turn(tree: Any, bad: str) -> None:
    tree.script.reply = (
        "<tool_call>\n<function=bash>\n<parameter=command>\necho a\n</parameter>\n"
        f"{bad}\n</parameter>\n</function>\n</tool_call>"
    )
    both_ways(tree, **GREEDY, tools=[BASH], enable_thinking=False)
    message = tree.post(**GREEDY, tools=[BASH], enable_thinking=False).json()["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"command": "echo a"}
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a"}
    assert tree.post(messages=[USER, message, result], tools=[BASH]).status_code == 200


HISTORY_CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [HISTORY_CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": "a"}, SYSTEM, USER],
        [SYSTEM, SYSTEM, USER],
        [USER, SYSTEM],
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER],
        [USER, CALLING, RESULT, RESULT, USER],
        [USER, CALLING, USER],
        [USER, {**CALLING, "tool_calls": [{**HISTORY_CALL, "function": {"name": "bash", "arguments": '{"a":'}}]}, USER],
    ],
)
def test_odd_orders_of_messages_are_served(running: Any, messages: list[Any]) -> None:
    assert running.post(messages=messages, tools=[BASH]).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM],
        [{"role": "assistant", "content": "a"}],
        [SYSTEM, CALLING, RESULT],
        [{"role": "user", "content": "<tool_response>\nx\n</tool_response>"}],
    ],
)
def test_a_conversation_without_a_question_is_served_or_named(running: Any, messages: list[Any]) -> None:
    response = running.post(messages=messages, tools=[BASH])
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["param"] == "messages"
        assert "user" in error["message"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/chat/completions/render"]
)
@pytest.mark.parametrize("text", [rb"emoji \ud83d end", b"byte \xff end", rb"nul \u0000 end"])
def test_broken_text_is_refused_on_every_route(running: Any, path: str, text: bytes) -> None:
    bodies = (b'{"messages": [{"role": "user", "content": "%b"}]}' % text, b'{"prompt": "%b"}' % text)
    statuses = [running.http.post(path, content=body).status_code for body in bodies]
    assert set(statuses) <= {200, 400}
    assert (200 in statuses) == (b"nul" in text)
    assert running.post().status_code == 200


def test_a_second_turn_reuses_the_first_with_thinking_off(tree: Any) -> None:
    system = {"role": "system", "content": "A rule. " * 200}
    body = {"enable_thinking": False}
    assert cached(tree, messages=[system, USER], **body) == 0
    first = tree.post("/tokenize", messages=[system, USER], add_generation_prompt=False).json()["count"]
    answer = {"role": "assistant", "content": "Hello there."}
    assert cached(tree, messages=[system, USER, answer, USER], **body) >= first - 1


@pytest.mark.parametrize("preserve", [False, True])
def test_a_question_behind_a_tool_chain_reuses_what_stayed(tree: Any, preserve: bool) -> None:
    chain: list[Any] = [USER]
    kwargs = {"enable_thinking": True, "preserve_thinking": preserve}
    tree.script.reply = f"I list.\n</think>\n\n{call('ls')}"
    for _ in range(5):
        answer = tree.post(messages=chain, tools=[BASH], chat_template_kwargs=kwargs, **GREEDY).json()
        chain += [answer["choices"][0]["message"], {"role": "tool", "content": "a.txt " * 20}]
    tree.script.reply = "A joke.\n</think>\n\nHa."
    before = tree.post(messages=chain, tools=[BASH], chat_template_kwargs=kwargs, **GREEDY).json()["usage"]
    chain += [{"role": "assistant", "content": "Ha.", "reasoning_content": "A joke."}, USER]
    body = {"messages": chain, "tools": [BASH], "chat_template_kwargs": kwargs}
    warm = tree.post(**body, **GREEDY).json()
    reused = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= before["prompt_tokens"] - 4 if preserve else 0 < reused < before["prompt_tokens"]
    cold = tree.post(**body, **GREEDY, cache_salt="another").json()
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert cold["choices"][0]["message"] == warm["choices"][0]["message"]


def test_salts_share_nothing_and_answers_are_never_stored(tree: Any) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 200}]}
    assert [cached(tree, **body, cache_salt=salt) > 0 for salt in ("a", "a", "b", "b", "")] == [0, 1, 0, 1, 0]
    tree.script.reply = "Another answer."
    answer = tree.post(**body, **GREEDY, cache_salt="a", enable_thinking=False).json()
    assert answer["choices"][0]["message"]["content"] == "Another answer."


def test_what_the_load_generator_sends_takes_effect(tree: Any) -> None:
    tree.script.reply = "Hello there."
    body = {
        "model": "tiny",
        "messages": [USER, {"role": "assistant", "reasoning_content": "R", "tool_calls": [HISTORY_CALL]}, RESULT],
        "stream": True,
        "max_completion_tokens": 64,
        "temperature": 0.0,
        "seed": 42,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": True},
        "tool_choice": "auto",
        "tools": [BASH],
    }
    response = tree.http.post("/v1/chat/completions", json=body, headers={"X-Session-ID": "s1"})
    chunks = events(response)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert merged(chunks)["content"] == "Hello there."
    sampling = tree.script.requests[-1].sampling
    assert (sampling.max_tokens, sampling.seed, sampling.top_k, sampling.top_p) == (64, 42, 20, 0.95)
