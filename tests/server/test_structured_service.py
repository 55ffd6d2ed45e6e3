"""Answers of a wanted form, over HTTP: what the scripted model would rather say does not get through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import BASH, both_ways, call, events, whole

from edgellm.decode.params import SpeculationParams

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["alpha", "beta"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "level"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
ANSWER = '{"kind": "beta", "level": 7}'
PROSE = "Sure! The kind is beta."


@pytest.fixture(params=[None, SpeculationParams(), SpeculationParams(4, 1, 5)], ids=["plain", "tree", "chain"])
def running(request: pytest.FixtureRequest, start: Any) -> Any:
    return start(speculation=request.param)


def test_a_schema_is_obeyed_whatever_the_model_says(running: Any) -> None:
    for reply, expected in ((ANSWER, json.loads(ANSWER)), (PROSE, None)):
        running.script.reply = reply
        answer = both_ways(running, response_format=JSON, enable_thinking=False, max_tokens=300, temperature=0)
        value = json.loads(answer["content"])
        assert expected is None or value == expected
        assert value["kind"] in ("alpha", "beta")
        assert 0 <= value["level"] <= 9
        assert answer["finish_reason"] == "stop"
        assert not answer["reasoning"]


def test_reasoning_in_front_of_a_schema_is_free(running: Any) -> None:
    running.script.reply = f"It is {{beta}}, I think.\n</think>\n\n{ANSWER}"
    answer = both_ways(running, response_format=JSON, enable_thinking=True, temperature=0)
    assert answer["reasoning"] == "It is {beta}, I think."
    assert answer["content"] == ANSWER


def test_reasoning_under_its_other_name(start: Any) -> None:
    running = start(reasoning_field="reasoning")
    running.script.reply = "I think.\n</think>\n\nHello."
    body = {"enable_thinking": True, "temperature": 0}
    message = running.post(**body).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("I think.", "Hello.")
    assert "reasoning_content" not in message
    deltas = [chunk["choices"][0]["delta"] for chunk in events(running.post(**body, stream=True))]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "I think."
    assert not any("reasoning_content" in delta for delta in deltas)


def test_the_turn_cannot_end_in_the_reasoning_while_an_answer_is_owed(running: Any) -> None:
    running.script.reply = "It is beta."  # and then the end of the turn
    body = {"response_format": JSON, "enable_thinking": True, "temperature": 0, "max_tokens": 400}
    answer = both_ways(running, **body, max_thinking_tokens=60)
    assert answer["reasoning"].startswith("It is beta.")
    assert set(json.loads(answer["content"])) == {"kind", "level"}


def test_a_budget_closes_the_reasoning(running: Any) -> None:
    running.script.reply = "word " * 200 + "\n</think>\n\nDone."
    body = {"enable_thinking": True, "temperature": 0, "max_tokens": 100, "max_thinking_tokens": 20}
    response = running.post(**body).raise_for_status().json()
    answer = whole(response)
    assert answer["reasoning"]
    assert ("word " * 40).startswith(answer["reasoning"])
    assert 0 < response["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 20 + 2
    assert answer["finish_reason"] == "stop"
    assert "</think>" not in answer["content"]


def test_a_call_can_be_forced(running: Any) -> None:
    running.script.reply = PROSE
    ls = {"type": "function", "function": {"name": "ls"}}
    body = {"tools": [BASH, ls], "enable_thinking": False, "temperature": 0, "max_tokens": 300}
    for choice in ({"type": "function", "function": {"name": "ls"}}, "required"):
        running.script.reply = call("ls -la") if choice == "required" else PROSE
        answer = both_ways(running, **body, tool_choice=choice, parallel_tool_calls=False)
        (made,) = answer["tool_calls"]
        assert answer["finish_reason"] == "tool_calls"
        assert not answer["content"]
        name, arguments = made["function"]["name"], json.loads(made["function"]["arguments"])
        assert (name, arguments) == (("bash", {"command": "ls -la"}) if choice == "required" else ("ls", {}))


def test_a_forced_call_behind_reasoning(running: Any) -> None:
    running.script.reply = f"I list the files.\n</think>\n\n{call('ls')}"
    answer = both_ways(running, tools=[BASH], tool_choice="required", enable_thinking=True, temperature=0)
    assert answer["reasoning"] == "I list the files."
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}


def test_each_choice_has_its_own_place_in_the_grammar(running: Any) -> None:
    running.script.reply = ANSWER
    body = running.post(response_format=JSON, enable_thinking=False, n=3, temperature=1, seed=4).raise_for_status()
    assert [json.loads(choice["message"]["content"]) for choice in body.json()["choices"]] == [json.loads(ANSWER)] * 3


def test_text_completions_take_grammars(running: Any) -> None:
    running.script.reply = PROSE
    body = {"prompt": "x", "guided_choice": ["yes", "no"], "temperature": 0}
    answer = running.post("/v1/completions", **body).raise_for_status().json()
    assert answer["choices"][0]["text"] in ("yes", "no")


def test_logprobs_and_stop_strings_stay_aligned(running: Any) -> None:
    running.script.reply = ANSWER
    body = {"response_format": JSON, "enable_thinking": False, "temperature": 0, "logprobs": True}
    answer = running.post(**body).raise_for_status().json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    cut = running.post(**body, stop=["level"]).raise_for_status().json()
    assert cut["choices"][0]["message"]["content"] == ANSWER.split("level")[0]


def test_a_bad_schema_is_refused_and_nothing_else_suffers(running: Any) -> None:
    deep: Any = {"type": "string"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    for schema in ({"$ref": "#"}, {"type": "thing"}, {"not": {}}, {"type": "string", "pattern": "("}, deep):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = running.post(response_format=wanted)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["code"] in ("invalid_grammar", "invalid_json")
    running.script.reply = "Hello there."
    assert running.post(enable_thinking=False).json()["choices"][0]["message"]["content"] == "Hello there."


def test_the_sdk_parses_into_a_model(running: Any) -> None:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        people: int | None

    running.script.reply = '{"name": "Paris", "people": null}'
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "hi"}]
    extra = {"enable_thinking": False}
    answer = client.chat.completions.parse(model="tiny", messages=messages, response_format=City, extra_body=extra)
    assert answer.choices[0].message.parsed == City(name="Paris", people=None)
    with client.chat.completions.stream(
        model="tiny", messages=messages, response_format=City, extra_body=extra
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(name="Paris", people=None)
