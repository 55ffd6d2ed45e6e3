"""Forms of an answer together with everything else a careless client sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import BASH, both_ways, call, events, whole

READ = {
    "type": "function",
    "function": {
        "name": "fs.read-file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"$ref": "#/$defs/path"}, "lines": {"type": "int"}},
            "required": ["path"],
            "additionalProperties": True,
            "$defs": {"path": {"type": "string", "pattern": "^/"}},
        },
    },
}
FORCED = {"tools": [BASH, READ], "tool_choice": "required", "enable_thinking": False, "temperature": 0}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}


def read_call(path: str) -> str:
    return call(path, "fs.read-file").replace("command", "path")


def test_forced_calls_come_out_whole_and_under_their_names(tree: Any) -> None:
    tree.script.reply = f"{read_call('/a')}\n{call('ls')}"
    answer = both_ways(tree, **FORCED)
    assert [made["function"]["name"] for made in answer["tool_calls"]] == ["fs.read-file", "bash"]
    assert answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_a_forced_call_that_is_cut_is_not_made(tree: Any, limit: int) -> None:
    tree.script.reply = call("a long command " * 20)
    answer = both_ways(tree, **FORCED, max_tokens=limit)
    assert answer["finish_reason"] == "length"
    chunks = events(tree.post(**FORCED, max_tokens=limit, stream=True))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_cuts_a_forced_call(tree: Any) -> None:
    tree.script.reply = call("echo STOP here")
    answer = both_ways(tree, **FORCED, stop=["STOP"])
    assert answer["finish_reason"] == "stop"
    assert "STOP" not in json.dumps(answer)


def test_the_end_of_a_form_outranks_min_tokens(tree: Any) -> None:
    tree.script.reply = "yes"
    body = {"response_format": SCHEMA, "enable_thinking": False, "temperature": 0, "min_tokens": 50, "max_tokens": 60}
    answer = both_ways(tree, **body)
    assert (answer["content"], answer["finish_reason"]) == ('"yes"', "stop") or answer["content"] == '"no"'


def test_penalties_and_bias_cannot_break_a_form(tree: Any) -> None:
    tree.script.reply = "yes"
    bias = {str(token): -100 for token in range(3, 200)}
    body = {
        "response_format": SCHEMA,
        "enable_thinking": False,
        "temperature": 2,
        "seed": 3,
        "logit_bias": bias,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.9,
        "top_p": 0.1,
        "min_p": 0.9,
    }
    for n in (1, 4):
        choices = tree.post(**body, n=n, max_tokens=80).raise_for_status().json()["choices"]
        assert {json.loads(choice["message"]["content"]) for choice in choices} <= {"yes", "no"}


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_may_think_and_is_forced(tree: Any, stream: bool) -> None:
    tree.script.reply = f"I list.\n</think>\n\n{call('ls')}"
    body = {**FORCED, "enable_thinking": True, "n": 3, "temperature": 1, "seed": 1, "max_tokens": 400}
    if stream:
        calls: dict[int, str] = {}
        for chunk in events(tree.post(**body, stream=True)):
            for choice in chunk["choices"]:
                for delta in choice["delta"].get("tool_calls") or ():
                    index = choice["index"]
                    calls[index] = calls.get(index, "") + (delta["function"].get("arguments") or "")
    else:
        choices = tree.post(**body).raise_for_status().json()["choices"]
        calls = {c["index"]: c["message"]["tool_calls"][0]["function"]["arguments"] for c in choices}
    assert {index: json.loads(text) for index, text in calls.items()} == {n: {"command": "ls"} for n in range(3)}


def test_logprobs_of_a_form_behind_reasoning_cover_all_tokens(tree: Any) -> None:
    tree.script.reply = 'Hm.\n</think>\n\n"no"'
    body = {"response_format": SCHEMA, "enable_thinking": True, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    answer = tree.post(**body).raise_for_status().json()
    streamed = [
        entry
        for chunk in events(tree.post(**body, stream=True))
        for entry in (chunk["choices"][0].get("logprobs") or {}).get("content") or ()
    ]
    assert len(streamed) == answer["usage"]["completion_tokens"]
    assert [e["token"] for e in streamed] == [e["token"] for e in answer["choices"][0]["logprobs"]["content"]]


def chained(length: int) -> dict[str, Any]:
    definitions = {
        f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_json": chained(3000)}, "guided_json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": chained(3000)}}}, "response_format"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"structured_outputs": {"grammar": "root ::= " + "(" * 5000}}, "structured_outputs.grammar"),
        ({"grammar": "\n".join(f'r{n}: "a" r{n + 1}' for n in range(5000))}, "grammar"),
        ({**FORCED, "tools": [{"type": "function", "function": {"name": "f", "parameters": chained(3000)}}]}, "tools"),
        (
            {
                **FORCED,
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a\nb": {}}, "required": ["a\nb"]}},
                    }
                ],
            },
            "tools",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused_and_the_server_lives(
    running: Any, body: dict[str, Any], param: str
) -> None:
    response = running.post(**body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert running.post().status_code == 200


def test_a_required_that_is_no_list_is_tolerated(running: Any) -> None:
    for required in (True, 3, "path", None, {"a": 1}):
        parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": required}
        tool = {"type": "function", "function": {"name": "bash", "parameters": parameters}}
        running.script.reply = call("ls")
        body = {"tools": [tool], "tool_choice": "required", "enable_thinking": False, "temperature": 0}
        assert whole(running.post(**body).raise_for_status().json())["tool_calls"]


@pytest.mark.parametrize(
    ("path", "body", "form"),
    [
        ("/v1/chat/completions", {}, lambda schema: {"type": "function", "function": {"name": "f", **schema}}),
        ("/v1/messages", {"max_tokens": 5}, lambda schema: {"name": "f", "input_schema": schema["parameters"]}),
        ("/v1/responses", {"input": "x", "messages": None}, lambda schema: {"type": "function", "name": "f", **schema}),
    ],
)
@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("kind", [{"b": 1}, [{"b": 1}], 5])
def test_a_type_that_is_none_is_no_fault_of_ours(
    running: Any, path: str, body: dict[str, Any], form: Any, strict: bool | None, kind: Any
) -> None:
    schema = {"parameters": {"type": "object", "properties": {"a": {"type": kind}}}, "strict": strict}
    asked = {"messages": [{"role": "user", "content": "hi"}], **body, "tools": [form(schema)]}
    assert running.http.post(path, json=asked).status_code in (200, 400)
