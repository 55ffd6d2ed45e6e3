"""A response streamed and whole: the events are in the official order, and tell the same as the body."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from response_events import assembled, response_events, shape

from edgellm.runtime.types import Output as Generated
from edgellm.runtime.types import Usage
from edgellm.server.responses.answer import ResponseAnswer
from edgellm.server.responses.items import to_messages
from edgellm.server.responses.tools import Tool, Toolbox
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

openai_state = pytest.importorskip("openai.lib.streaming.responses._responses", reason="the openai package is missing")

TOOLS = Toolbox(
    {
        "ls": Tool("function", "ls", None, {}),
        "web__get": Tool("function", "get", "web", {}),
        "patch": Tool("custom", "patch", None, {}),
    }
)
BASH = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}


class FakeSaid:
    """Gives deltas as they were told; keeps what the answers ask for."""

    complete = False
    empty = False
    calls = ()
    reasoning_tokens = 3

    def __init__(self, pieces: list[list[ParsedDelta]]) -> None:
        self._pieces = iter(pieces)
        self.final = Generated()

    @property
    def finish(self) -> str:
        return "length" if self.final.finish_reason == "length" else "stop"

    def feed(self, output: Generated) -> list[ParsedDelta]:
        if output.finish_reason is not None:
            self.final = output
        return next(self._pieces)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[list[ParsedDelta]], str]:
    """Deltas of one generation in the groups in which they come, and how it ends."""
    deltas: list[ParsedDelta] = []
    calls = 0
    kinds = draw(st.lists(st.sampled_from(["words", "thoughts", "ls", "web__get", "patch", "cut"]), max_size=8))
    for kind in kinds:
        if kind == "words":
            deltas += [ContentDelta(text) for text in draw(st.lists(TEXT, min_size=1, max_size=4))]
        elif kind == "thoughts":
            deltas += [ReasoningDelta(text) for text in draw(st.lists(TEXT, min_size=1, max_size=4))]
        else:
            name = "ls" if kind == "cut" else kind
            arguments = json.dumps({"input": draw(TEXT)}, ensure_ascii=draw(st.booleans()))
            deltas.append(ToolCallStart(calls, f"call_{calls}", name))
            while arguments:
                size = draw(st.integers(1, len(arguments)))
                deltas.append(ToolCallArguments(calls, arguments[:size]))
                arguments = arguments[size:]
            if kind != "cut":
                deltas.append(ToolCallEnd(calls))
            calls += 1
    groups: list[list[ParsedDelta]] = []
    while deltas:
        size = draw(st.integers(1, len(deltas)))
        groups.append(deltas[:size])
        deltas = deltas[size:]
    return [*groups, []], draw(st.sampled_from(["stop", "length"]))


def answer_of(groups: list[list[ParsedDelta]], *, summary: bool, kept: list[Any]) -> ResponseAnswer:
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "tools": [], "tool_choice": "auto"}
    head |= {"parallel_tool_calls": True}
    return ResponseAnswer(head, FakeSaid(groups), TOOLS, summary=summary, keep=kept.append)  # type: ignore[arg-type]


def events_of(answer: ResponseAnswer, groups: list[list[ParsedDelta]], finish: str) -> list[Any]:
    """As `sse` sends them: the first output is read before the opening events go out."""
    found: list[Any] = []
    for number, _ in enumerate(groups):
        last = number == len(groups) - 1
        usage = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=7) if last else None
        output = Generated(finish_reason=finish if last else None, usage=usage)  # type: ignore[arg-type]
        fresh = list(answer.feed(0, output))
        found += [*answer.opening(), *fresh] if number == 0 else fresh
    return [*found, *answer.closing()]


@settings(max_examples=300, deadline=None)
@given(turn=turns(), summary=st.booleans())
def test_the_events_tell_the_body(turn: tuple[list[list[ParsedDelta]], str], summary: bool) -> None:
    groups, finish = turn
    kept: list[Any] = []
    answer = answer_of(groups, summary=summary, kept=kept)
    events = json.loads(json.dumps(events_of(answer, groups, finish)))
    assert assembled(events) == events[-1]["response"] == answer.body() == kept[0]
    assert len(kept) == 1
    assert answer.body()["status"] == ("incomplete" if finish == "length" else "completed")
    assert events[-1]["type"] == f"response.{answer.body()['status']}"


@settings(max_examples=200, deadline=None)
@given(turn=turns(), summary=st.booleans())
def test_nothing_is_lost_and_it_comes_back_as_the_chat_surface_has_it(
    turn: tuple[list[list[ParsedDelta]], str], summary: bool
) -> None:
    groups, finish = turn
    deltas = [delta for group in groups for delta in group]
    answer = answer_of(groups, summary=summary, kept=[])
    events_of(answer, groups, finish)
    output = answer.body()["output"]
    words = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    assert "".join(texts) == words
    calls = [(item["type"], item["name"], item.get("namespace")) for item in output if "call_id" in item]
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallStart)]
    known = {"ls": ("function_call", "ls", None), "web__get": ("function_call", "get", "web")}
    assert calls == [known.get(name, ("custom_tool_call", name, None)) for name in names]
    messages = to_messages((item, "output") for item in output)
    assert len(messages) == (1 if output else 0)
    for message in messages:
        told = [call["function"] for call in message.get("tool_calls", [])]
        assert [call["name"] for call in told] == names
        arguments: dict[int, str] = {}
        for delta in deltas:
            if isinstance(delta, ToolCallArguments):
                arguments[delta.index] = arguments.get(delta.index, "") + delta.fragment
        assert [json.loads(call["arguments"]) for call in told] == [json.loads(text) for text in arguments.values()]
        blocks = [part["text"] for item in output if item["type"] == "reasoning" for part in item["content"]]
        assert message.get("reasoning_content", "") == "\n".join(block for block in blocks if block)


@settings(max_examples=100, deadline=None)
@given(turn=turns())
def test_the_sdk_puts_together_the_same(turn: tuple[list[list[ParsedDelta]], str]) -> None:
    from openai import omit
    from openai._models import construct_type
    from openai.types.responses import ResponseStreamEvent

    groups, _ = turn
    answer = answer_of(groups, summary=True, kept=[])
    state = openai_state.ResponseStreamState(text_format=omit, input_tools=omit)
    for event in events_of(answer, groups, "stop"):
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=json.loads(json.dumps(event))))
    done = state._completed_response
    assert [item.id for item in done.output] == [item["id"] for item in answer.body()["output"]]
    for item, snapshot in zip(answer.body()["output"], done.output, strict=True):
        if item["type"] == "message":
            assert "".join(part.text for part in snapshot.content) == item["content"][0]["text"]


@pytest.mark.parametrize("summary", [False, True])
def test_both_ways_over_http(tree: Any, summary: bool) -> None:
    call = "<tool_call>\n<function=bash>\n<parameter=command>\nls é😀\n</parameter>\n</function>\n</tool_call>"
    tree.script.reply = f"I look.\n</think>\n\nLooking.\n{call}\n{call}\nDone."
    body: dict[str, Any] = {"input": "hi", "tools": [BASH], "temperature": 0, "enable_thinking": True}
    if summary:
        body["reasoning"] = {"summary": "auto"}
    whole = tree.post("/v1/responses", **body).raise_for_status().json()
    streamed = response_events(tree.post("/v1/responses", **body, stream=True))
    again = assembled(streamed)
    assert again == streamed[-1]["response"]
    # The second request finds the prefix of the first in the cache, and how much was drafted may differ.
    assert shape(again) | {"usage": None} == shape(whole) | {"usage": None}
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    assert [item["status"] for item in whole["output"]] == ["completed"] * 5
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "I look."}]
    assert whole["output"][0]["summary"] == ([{"type": "summary_text", "text": "I look."}] if summary else [])
    assert json.loads(whole["output"][2]["arguments"]) == {"command": "ls é😀"}
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + whole["usage"]["output_tokens"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    reply=st.lists(
        st.sampled_from(["a ", "\n", "é😀", "</think>", "<tool_call>", "\n<function=bash>\n", "<parameter=command>\n"])
        | st.sampled_from(["x\n</parameter>\n</function>\n</tool_call>", "\n</parameter>", "</function>"]),
        max_size=12,
    ),
    thinking=st.booleans(),
    limit=st.integers(1, 40),
)
def test_whatever_the_model_writes(tree: Any, reply: list[str], thinking: bool, limit: int) -> None:
    tree.script.reply = "".join(reply)
    body = {"input": "hi", "tools": [BASH], "temperature": 0, "enable_thinking": thinking, "max_output_tokens": limit}
    whole = tree.post("/v1/responses", **body).raise_for_status().json()
    streamed = response_events(tree.post("/v1/responses", **body, stream=True))
    assert assembled(streamed) == streamed[-1]["response"]
    assert shape(streamed[-1]["response"]) | {"usage": None} == shape(whole) | {"usage": None}


def test_a_limit_makes_it_incomplete(running: Any) -> None:
    events = response_events(running.post("/v1/responses", input="hi", max_output_tokens=2, stream=True))
    response = assembled(events)
    assert events[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["completed_at"] is None


def test_a_fault_in_the_middle_is_a_failed_response(start: Any, script: Any) -> None:
    running = start(script(reply="word " * 200, decode_step_s=0.001, fail_in=40))
    found: list[Any] = []

    def read() -> None:
        with running.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            found.extend(json.loads(line.removeprefix("data: ")) for line in lines)

    with pytest.raises(httpx.RemoteProtocolError):
        read()
    *_, last = found
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {
        "code": "server_error",
        "message": "generation failed; the server's log has the reason",
    }
    assert running.post(f"/v1/responses/{last['response']['id']}/cancel").status_code == 404


def test_a_stream_has_no_end_marker_of_chat(running: Any) -> None:
    assert "[DONE]" not in running.post("/v1/responses", input="hi", stream=True).text
