"""The parser's own rules: what it forgives, what it holds back, and what flows on at once."""

from __future__ import annotations

import pytest
from parsed import call, parse, parse_all_ways, tool

from edgellm.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from edgellm.text.parser import OutputParser

BASH = [tool("bash", command="string")]
TOOLS = [*BASH, tool("ls", path="string", depth="integer")]
BARE = call("ls", path=".").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


@pytest.mark.parametrize(
    "body",
    [
        "<parameter=path>\n.\n<parameter=depth>\n2\n</parameter>\n</function>\n</tool_call>",
        "<parameter=path>\n.\n</parameter>\n<parameter=depth>\n2\n</function>\n</tool_call>",
        "<parameter=path>\n.\n</parameter>\n<parameter=depth>\n2\n</parameter>\n</tool_call>",
        "<parameter=path>\n.\n</parameter>\n<parameter=depth>\n2\n</parameter>\n</function>",
        "<parameter=path>\n.\n</parameter>\n<parameter=depth>\n2\n</parameter>",
        "<parameter=path>\n.\n</parameter>\n<parameter=depth>\n2",
        "chatter\n<parameter=path>\n.\n</parameter>\n<parameter=depth>2</parameter></function></tool_call>",
    ],
)  # fmt: skip
def test_missing_tags_are_forgiven(body: str) -> None:
    text = f"<tool_call>\n<function=ls>\n{body}"
    assert parse_all_ways(text, TOOLS).arguments() == [("ls", {"path": ".", "depth": 2})]
    if body.endswith("</tool_call>"):
        again = parse_all_ways(f"{text}\n{call('bash', command='x')}", TOOLS).arguments()
        assert again == [("ls", {"path": ".", "depth": 2}), ("bash", {"command": "x"})]


@pytest.mark.parametrize(
    "value",
    ["</parameter> and more", "a\n</function>\n</tool_call>\nb", "<parameter=command>\n</parameter>x", "<tool_call>",
     "</think>", "<function=ls>", "\n\nindented\n", "<parameter=other>"],
)  # fmt: skip
def test_values_keep_tags_and_space(value: str) -> None:
    assert parse_all_ways(call("bash", command=value), TOOLS).arguments() == [("bash", {"command": value})]


@pytest.mark.parametrize(
    "text",
    [
        f"say {BARE}",
        f"```\n{BARE}\n```",
        BARE.removesuffix("\n</function>"),
        BARE.replace("<parameter", "x\n<parameter"),
    ],
)
def test_a_bare_function_counts_only_at_a_line_start_and_whole(text: str) -> None:
    answer = parse_all_ways(text, TOOLS)
    assert (answer.content, answer.calls) == (text, [])


def test_a_bare_call_cut_by_length_is_text() -> None:
    text = "<function=ls>\n<parameter=path>\n."
    assert parse_all_ways(text, TOOLS, finish="length").content == text


def test_reasoning_drafts_are_text_unless_the_turn_ends_with_them() -> None:
    draft = call("ls", path="/")
    recovered = parse_all_ways(f"Look.\n{draft}\n{draft}\n", TOOLS, thinking=True)
    assert recovered.reasoning == "Look."
    assert [name for name, _ in recovered.calls] == ["ls", "ls"]
    for behind in ("</think>", " or not", "</think>\n\nDone."):
        assert parse_all_ways(f"Look.\n{draft}{behind}", TOOLS, thinking=True).calls == []
    assert parse_all_ways(draft, TOOLS, thinking=True, finish="length").reasoning == draft


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("<think>r</think>\n\nHello", False, "r", "Hello"),
        ("<think>r</think>\n\nHello", True, "r", "Hello"),
        ("r</thi", True, "r</thi", ""),
        ("r1\n</think>\n\n<think>\nr2\n</think>\n\nanswer", True, "r1", "<think>\nr2\n</think>\n\nanswer"),
        ("\n</think>\n\nHello", False, "", "Hello"),
        ("say </think> twice", False, "", "say </think> twice"),
        ("  indented\n", False, "", "  indented\n"),
        (" \n", True, "", ""),
    ],
)
def test_reasoning_and_content(text: str, thinking: bool, reasoning: str, content: str) -> None:
    for tools in (TOOLS, []):
        answer = parse_all_ways(text, tools, thinking=thinking)
        assert (answer.reasoning, answer.content) == (reasoning, content)


def test_words_around_calls_keep_the_space_between_them() -> None:
    made = call("bash", command="x")
    assert parse_all_ways(f"Before.\n\n{made}\n\nAfter.", TOOLS).content == "Before.\n\nAfter."
    assert parse_all_ways(f"{made}\n\nAfter.", TOOLS).content == "After."
    assert parse_all_ways(f"Before.\n\n{made}\n", TOOLS).content == "Before."


def test_names_come_back_as_declared() -> None:
    for name in ("math.hypot", "a-b", "get_x.v2"):
        assert parse_all_ways(call(name, x="1"), [tool(name, x="integer")]).arguments() == [(name, {"x": 1})]
    assert parse_all_ways(call("math_hypot", x="1"), [tool("math.hypot", x="integer")]).calls == []


def test_the_name_and_string_arguments_flow_at_once() -> None:
    parser = OutputParser(BASH, thinking_open=False, parse_tools=True, id_seed="s")
    (start,) = parser.feed("<tool_call>\n<function=bash>")
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name, len(start.id)) == (0, "bash", 29)
    assert parser.feed("\n<parameter=command>\nls 日") == [ToolCallArguments(0, '{"command": "ls 日')]
    assert parser.feed("😀 -l") == [ToolCallArguments(0, "😀 -l")]
    same = OutputParser(BASH, thinking_open=False, parse_tools=True, id_seed="s")
    assert same.feed("<tool_call>\n<function=bash>") == [start]


def test_text_flows_at_once() -> None:
    parser = OutputParser(BASH, thinking_open=True, parse_tools=True)
    assert parser.feed("so a <") == [ReasoningDelta("so a")]
    assert parser.feed(" b</think>\n\nYes <tool_call>") == [ReasoningDelta(" < b"), ContentDelta("Yes")]
    assert parser.feed(" is a tag") == [ContentDelta(" <tool_call> is a tag")]


def test_without_tools_their_syntax_is_text() -> None:
    text = call("bash", command="x")
    parser = OutputParser(BASH, thinking_open=False, parse_tools=False)
    assert parser.feed(text) + parser.finish(True) == [ContentDelta(text)]


def test_work_is_linear_in_drafts_and_held_text() -> None:
    units = ("\n<function=bash>", "<tool_call>\n<function=nope>", "</function>\n</tool_call> x", "</parameter>", "\n")
    for unit in units:  # quadratic work on 100 kB in deltas of three characters would take minutes
        for lead in ("", "<tool_call>\n<function=ls>\n<parameter=depth>\n"):
            parse(lead + unit * (100_000 // len(unit)), TOOLS, sizes=[3], thinking=not lead)
