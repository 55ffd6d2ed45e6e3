"""Chat completions over HTTP: streamed equals whole, and every chunk fits the strictest clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import BASH, call, events, merged, whole, without_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.mlperf.wire import read_frames


def test_stream_form(running: Any) -> None:
    first, *middle, last = events(running.post(stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert len({chunk["id"] for chunk in (first, *middle, last)}) == 1
    assert {chunk["object"] for chunk in (first, *middle, last)} == {"chat.completion.chunk"}


def test_running_usage_grows_to_the_whole(running: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    first, *rest, last = events(running.post(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in (first, *rest, last)]
    assert counts == sorted(counts)
    usage = last["usage"]
    totals = {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert rest[-1]["usage"] == totals
    assert first["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    alone = events(running.post(stream=True, stream_options={"continuous_usage_stats": True}))
    assert all("usage" not in chunk for chunk in alone)


def test_answers_have_the_fields_of_the_api(running: Any) -> None:
    body = running.post().json()
    (choice,) = body["choices"]
    assert choice["logprobs"] is None
    assert choice["message"]["refusal"] is None
    text = running.post("/v1/completions", prompt="x").json()
    prints = {body["system_fingerprint"], text["system_fingerprint"]}
    prints |= {chunk["system_fingerprint"] for chunk in events(running.post(stream=True))}
    assert len(prints) == 1
    (choice,) = running.post(logprobs=True).json()["choices"]
    assert choice["logprobs"]["refusal"] is None


def test_usage_chunk_only_when_asked(running: Any) -> None:
    for options in (None, {}, {"include_usage": False}):
        assert all(chunk["choices"] for chunk in events(running.post(stream=True, stream_options=options)))
    *rest, last = events(running.post(stream=True, stream_options={"include_usage": True}))
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in rest)
    assert last["choices"] == []
    body = running.post(stream_options={"include_usage": True}).json()
    assert last["usage"] == {**body["usage"], "prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


PIECES = [
    "Hi ",
    "é😀\u2028",
    "<tool_call>",
    "</think>",
    "\n\n",
    "{}",
    call("ls"),
    call("pwd", "other"),
    "<function=bash>",
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_streamed_equals_whole(running: Any, tree: Any, data: st.DataObject) -> None:
    """Whatever the reply, and however tokens are grouped into outputs."""
    reply = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=6)))
    running.script.reply = tree.script.reply = reply
    body = {
        "tools": data.draw(st.sampled_from([None, [BASH]])),
        "enable_thinking": data.draw(st.booleans()),
        "max_tokens": data.draw(st.sampled_from([None, 3, 20])),
        "stop": data.draw(st.sampled_from([None, "pwd", ["}", "Hi"]])),
        "parallel_tool_calls": data.draw(st.booleans()),
        "seed": 1,
    }
    expected = without_ids(whole(running.post(**body).json()))
    assert without_ids(whole(tree.post(**body).json())) == expected
    for server in (running, tree):
        assert without_ids(merged(events(server.post(stream=True, **body)))) == expected


def test_every_frame_is_taken_by_the_harness(running: Any) -> None:
    running.script.reply = f"Let me look.\n{call('ls')}\n{call('echo é😀')}"
    raw = running.post(stream=True, tools=[BASH], stream_options={"include_usage": True}).content
    frames, warning = read_frames(raw)
    assert warning is None
    assert len(frames) == raw.count(b"data: {")


def test_parallel_calls_have_their_own_index(running: Any) -> None:
    running.script.reply = "\n".join(call(f"echo {i}") for i in range(3))
    chunks = events(running.post(stream=True, tools=[BASH]))
    deltas = [d for chunk in chunks for d in chunk["choices"][0]["delta"].get("tool_calls", [])]
    opening = [delta for delta in deltas if "id" in delta]
    assert [delta["index"] for delta in opening] == [0, 1, 2]
    assert len({delta["id"] for delta in opening}) == 3
    for delta in opening:
        assert delta["function"] == {"name": "bash", "arguments": ""}
        assert delta["type"] == "function"
    assert all(set(delta) == {"index", "function"} for delta in deltas if "id" not in delta)
    answer = merged(chunks)
    assert [json.loads(c["function"]["arguments"]) for c in answer["tool_calls"]] == [
        {"command": f"echo {i}"} for i in range(3)
    ]
    assert answer["finish_reason"] == "tool_calls"
    assert running.post(tools=[BASH]).json()["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("stream", [True, False])
def test_one_call_when_parallel_calls_are_off(running: Any, stream: bool) -> None:
    running.script.reply = "\n".join(call(f"echo {i}") for i in range(50))
    running.script.decode_step_s = 0.002
    response = running.post(stream=stream, tools=[BASH], parallel_tool_calls=False)
    answer = merged(events(response)) if stream else whole(response.json())
    assert [json.loads(c["function"]["arguments"]) for c in answer["tool_calls"]] == [{"command": "echo 0"}]
    assert answer["finish_reason"] == "tool_calls"
    assert running.settled()


def test_tool_names_come_back_as_declared(running: Any) -> None:
    for name in ("math.hypot", "a-b", "get_x.v2"):
        tool = {"type": "function", "function": {**BASH["function"], "name": name}}
        running.script.reply = call("x", name)
        assert whole(running.post(tools=[tool]).json())["tool_calls"][0]["function"]["name"] == name


def test_tool_syntax_without_tools_is_text(running: Any) -> None:
    running.script.reply = call("ls")
    answer = whole(running.post().json())
    assert answer == {"content": call("ls"), "reasoning": "", "tool_calls": [], "finish_reason": "stop"}


def test_reasoning_has_one_name_and_is_counted(running: Any) -> None:
    running.script.reply = "I think.\n</think>\n\nDone."
    body = running.post(enable_thinking=True).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I think.", "Done.")
    assert "reasoning" not in message
    counted = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < body["usage"]["completion_tokens"]
    answer = merged(events(running.post(stream=True, enable_thinking=True)))
    assert (answer["reasoning"], answer["content"]) == ("I think.", "Done.")
    running.script.reply = "thinking without end"
    usage = running.post(enable_thinking=True, max_tokens=4).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 4


def test_stop_strings_and_limits(running: Any) -> None:
    running.script.reply = "Say A STOP B"
    assert whole(running.post(stop=["STOP"]).json())["content"] == "Say A "
    assert whole(running.post(stop="STOP").json())["finish_reason"] == "stop"
    limited = running.post(max_tokens=2).json()
    assert limited["choices"][0]["finish_reason"] == "length"
    assert limited["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_was_cut_does_not_count_as_made(running: Any, stream: bool) -> None:
    running.script.reply = f"{call('echo one')}\n{call('rm -rf build/')}"

    def answer(**body: Any) -> dict[str, Any]:
        response = running.post(stream=stream, tools=[BASH], **body)
        return merged(events(response)) if stream else whole(response.json())

    cut = answer(stop=["build"])
    assert cut["finish_reason"] == "stop"
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(cut["tool_calls"][1]["function"]["arguments"])
    assert answer()["finish_reason"] == "tool_calls"


def test_logprobs_cover_every_generated_token(running: Any, tree: Any) -> None:
    running.script.reply = tree.script.reply = f"Why.\n</think>\n\nOk é😀 {call('ls')}"
    body = {"logprobs": True, "top_logprobs": 2, "enable_thinking": True, "tools": [BASH]}
    response = running.post(**body).json()
    content = response["choices"][0]["logprobs"]["content"]
    assert len(content) == response["usage"]["completion_tokens"]
    raw = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    assert raw.startswith(running.script.reply)
    for server in (running, tree):
        chunks = events(server.post(stream=True, **body))
        streamed = [e for c in chunks for e in c["choices"][0].get("logprobs", {}).get("content", [])]
        assert [e["token"] for e in streamed] == [e["token"] for e in content]


def test_text_completions(running: Any) -> None:
    body = running.post("/v1/completions", prompt="Once", max_tokens=50, logprobs=1).json()
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there.", "stop")
    block = choice["logprobs"]
    assert len(block["tokens"]) == len(block["token_logprobs"]) == body["usage"]["completion_tokens"]
    chunks = events(running.post("/v1/completions", prompt="Once", max_tokens=50, stream=True, logprobs=1))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello there."
    assert [t for c in chunks for t in c["choices"][0]["logprobs"]["tokens"]] == block["tokens"]
    assert [o for c in chunks for o in c["choices"][0]["logprobs"]["text_offset"]] == block["text_offset"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    *_, last = events(
        running.post("/v1/completions", prompt="Once", stream=True, stream_options={"include_usage": True})
    )
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


def doublings(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"allOf": [schema, schema]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}},
        {"type": "array", "maxItems": 2**64 - 1},
        {"type": "string", "pattern": "(a+)+$"},
        doublings(6),
        {"type": ["string", "null"], "enum": [None], "anyOf": []},
    ],
)
def test_hostile_schemas_do_no_harm(running: Any, schema: dict[str, Any]) -> None:
    """As a parameter's schema and as the whole parameters object."""
    running.script.reply = call("a" * 40 + "!")
    nested = {"type": "object", "properties": {"command": schema}}
    for parameters in (nested, schema):
        tool = {"type": "function", "function": {"name": "bash", "parameters": parameters}}
        answer = whole(running.post(tools=[tool], max_tokens=200).json())
        assert isinstance(json.loads(answer["tool_calls"][0]["function"]["arguments"]), dict)
