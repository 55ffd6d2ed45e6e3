"""Whatever is said in whatever order, and however it is cut: a stream adds up to the whole answer."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_events import content

from edgellm.server.anthropic.said_blocks import SaidBlocks
from edgellm.server.said import SaidCall
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[ParsedDelta], list[SaidCall]]:
    """Deltas as parsers give them: a call's arguments come in pieces; it may be cut and never end."""
    deltas: list[ParsedDelta] = []
    calls: list[SaidCall] = []
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=12)):
        if kind != "call":
            text = draw(words)
            deltas.append(ContentDelta(text) if kind == "content" else ReasoningDelta(text))
            continue
        index = len(calls)
        calls.append(SaidCall(f"call_{index}", draw(words)))
        deltas.append(ToolCallStart(index, calls[-1].id, calls[-1].name))
        arguments = json.dumps(draw(st.dictionaries(words, values, max_size=4)), ensure_ascii=draw(st.booleans()))
        whole = draw(st.booleans())
        arguments = arguments if whole else arguments[: draw(st.integers(0, len(arguments)))]
        while arguments:
            size = draw(st.integers(1, len(arguments)))
            deltas.append(ToolCallArguments(index, arguments[:size]))
            calls[-1].arguments += arguments[:size]
            arguments = arguments[size:]
        if whole:
            deltas.append(ToolCallEnd(index))
    return deltas, calls


def shown(deltas: list[ParsedDelta], calls: list[SaidCall]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and whole blocks."""
    blocks = SaidBlocks()
    found = [event for delta in deltas for event in blocks.take(delta, calls)]
    return [*found, *blocks.close()], blocks.whole()


@given(answers())
def test_a_stream_adds_up_to_the_whole(answer: tuple[list[ParsedDelta], list[SaidCall]]) -> None:
    found, whole = shown(*answer)
    assert content(found) == whole


@given(answers())
def test_everything_said_is_there_once_and_in_order(answer: tuple[list[ParsedDelta], list[SaidCall]]) -> None:
    deltas, calls = answer
    _, whole = shown(deltas, calls)
    said: list[Any] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text) | ReasoningDelta(text):
                said.append((type(delta) is ContentDelta, text))
            case ToolCallStart(index):
                said.append(index)
    expected: list[Any] = []
    for kind, group in groupby(said, key=lambda item: item if isinstance(item, int) else item[0] + 100):
        expected.append(calls[kind].name if kind < 100 else (kind == 101, "".join(text for _, text in group)))
    made = [
        block["name"] if block["type"] == "tool_use" else (block["type"] == "text", block[block["type"]])
        for block in whole
    ]
    assert made == expected
    ended = {delta.index for delta in deltas if isinstance(delta, ToolCallEnd)}
    inputs = [block["input"] for block in whole if block["type"] == "tool_use"]
    assert [inputs[index] for index in sorted(ended)] == [json.loads(calls[index].arguments) for index in sorted(ended)]
    assert all(isinstance(given, dict) for given in inputs)


@settings(deadline=None)  # the client's types are made when they are first used
@given(answers())
def test_the_official_client_reads_the_same(answer: tuple[list[ParsedDelta], list[SaidCall]]) -> None:
    streaming = pytest.importorskip(
        "anthropic.lib.streaming._messages", reason="the anthropic package is not installed"
    )
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    found, whole = shown(*answer)
    made, buffers = None, dict[int, bytes]()
    for event in ({"type": "message_start", "message": start}, *found):
        made = streaming.accumulate_event(event=event, current_snapshot=made, json_bufs=buffers)
    assert [block.to_dict() for block in made.content] == whole


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": 1, "b": "cut in the mid', {"a": 1}),
        ('{"a": {"b": [true, fal', {"a": {"b": [True]}}),
        ("[1, 2]", {}),
        ("no JSON", {}),
        ('{"a": NaN}', {}),
        ('{"a": [1e999, -1e999]}', {"a": [1.7976931348623157e308, -1.7976931348623157e308]}),
    ],
)
def test_of_a_call_that_was_cut_the_complete_members_are_told(arguments: str, complete: dict[str, Any]) -> None:
    start, rest = ToolCallStart(0, "call_x", "f"), ToolCallArguments(0, arguments)
    (block,) = shown([start, rest], [SaidCall("call_x", "f", arguments)])[1]
    assert block == {"type": "tool_use", "id": "toolu_x", "name": "f", "input": complete}
