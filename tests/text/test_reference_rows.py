"""What other servers do with an answer, row by row, and what this one does with the same text.

Where it differs from NVIDIA Dynamo 1.6 the row says so: text is never lost, a cut call never looks whole, markup that
is no call stays visible.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from parsed import parse_all_ways, tool

F = tool("f", s="string", n="integer", b="boolean", o="object")
OTHER = tool("get-x.y_z", q="string")
TOOLS = [F, OTHER]
XML = "<tool_call>\n<function=f>\n<parameter=s>\n{}\n</parameter>\n</function>\n</tool_call>"

# (dialect, starts inside a thinking block, text, reasoning, content)
REASONING = [
    ("qwen3_coder", False, "just text", "", "just text"),
    ("qwen3_coder", False, "a</think>b", "", "a</think>b"),  # Dynamo swallows the tag; words around it are kept in both
    ("qwen3_coder", False, "<think>never closed", "never closed", ""),
    ("qwen3_coder", True, "r</think>x", "r", "x"),
    ("qwen3_coder", True, "plain, never closed", "plain, never closed", ""),
    ("qwen3_coder", True, "\nr\n</think>\n\nans", "r", "ans"),  # Dynamo keeps the white space next to the tags
    ("qwen3_coder", True, "<think>r</think>x", "r", "x"),  # an own opener inside an open block
    ("qwen3_coder", True, "</think>x", "", "x"),
    ("qwen3_coder", True, "  \n</think>\n", "", ""),
    ("qwen3_coder", False, "<think></think>", "", ""),
    ("hermes", False, "<think>r</think>x", "r", "x"),
    ("nemotron_deci", False, "<think>r</think>x", "r", "x"),
    ("glm45", False, "<think>r</think>x", "r", "x"),
    ("deepseek_v3", True, "r</think>x", "r", "x"),
    (
        "harmony",
        False,
        "<|channel|>analysis<|message|>r<|end|><|start|>assistant<|channel|>final<|message|>x",
        "r",
        "x",
    ),
]


@pytest.mark.parametrize(("dialect", "inside", "text", "reasoning", "content"), REASONING)
def test_reasoning(dialect: str, inside: bool, text: str, reasoning: str, content: str) -> None:
    answer = parse_all_ways(text, TOOLS, dialect=dialect, thinking=inside)
    assert (answer.reasoning, answer.content, answer.calls) == (reasoning, content, [])


# (dialect, text, calls, content)
CALLS: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    ("hermes", '<tool_call>{"name":"f","arguments":{"n":1}}</tool_call>', [("f", {"n": 1})], ""),
    ("hermes", '<tool_call>{"arguments":{"n":1},"name":"f"}</tool_call>', [("f", {"n": 1})], ""),  # order of fields
    ("hermes", 'a <tool_call>{"name":"f","arguments":{}}</tool_call> b', [("f", {})], "a b"),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{"name":"get-x.y_z","arguments":{}}</tool_call>',
        [("f", {}), ("get-x.y_z", {})],
        "",
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":{"n":1}}', [("f", {"n": 1})], ""),  # without its end
    ("qwen3_coder", XML.format("v"), [("f", {"s": "v"})], ""),
    ("qwen3_coder", XML.format("\na\n\nb\n"), [("f", {"s": "\na\n\nb\n"})], ""),  # one line end at each side goes
    ("qwen3_coder", XML.format("v").removesuffix("\n</tool_call>"), [("f", {"s": "v"})], ""),
    ("qwen3_coder", XML.format("v").removeprefix("<tool_call>\n"), [("f", {"s": "v"})], ""),  # outer tag optional
    (
        "qwen3_coder",
        XML.format("&lt;b&gt;"),
        [("f", {"s": "&lt;b&gt;"})],
        "",
    ),  # Dynamo unescapes; this form has no escapes
    ("qwen3_coder", XML.replace("=s>", "=n>").format("12"), [("f", {"n": 12})], ""),
    ("qwen3_coder", XML.replace("=s>", "=b>").format("true"), [("f", {"b": True})], ""),
    ("qwen3_coder", XML.replace("=s>", "=o>").format('{"a": [1]}'), [("f", {"o": {"a": [1]}})], ""),
    ("qwen3_coder", XML.replace("=s>", "=undeclared>").format("7"), [("f", {"undeclared": "7"})], ""),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", {})], ""),
    ("qwen3_coder", f"{XML.format('a')}\n{XML.format('a')}", [("f", {"s": "a"}), ("f", {"s": "a"})], ""),  # a duplicate
    ("qwen3_coder", f"first {XML.format('a')} then", [("f", {"s": "a"})], "first then"),
    ("nemotron_deci", '<TOOLCALL>[{"name":"f","arguments":{"n":1}}]</TOOLCALL>', [("f", {"n": 1})], ""),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"n":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"n": 1})],
        "",
    ),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"n": 1})],
        "",
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n":1}<|call|>',
        [("f", {"n": 1})],
        "",
    ),
    ("harmony", '<|channel|>analysis to=functions.f<|message|>{"n":1}<|call|>', [("f", {"n": 1})], ""),
    ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", [("f", {"n": 1})], ""),
    ("llama3_json", '<|python_tag|>{"name":"f","parameters":{"n":1}}', [("f", {"n": 1})], ""),
]


@pytest.mark.parametrize(("dialect", "text", "calls", "content"), CALLS)
def test_calls(dialect: str, text: str, calls: list[tuple[str, Any]], content: str) -> None:
    answer = parse_all_ways(text, TOOLS, dialect=dialect)
    assert (answer.arguments(), answer.content) == (calls, content)
    assert answer.ended == list(range(len(calls)))


# (dialect, text): no call comes out, and no word is lost
NO_CALL = [
    ("qwen3_coder", XML.format("v").replace("=f>", "=unknown>")),  # Dynamo returns calls to tools that nobody offered
    ("hermes", '<tool_call>{"name":"unknown","arguments":{}}</tool_call>'),
    ("qwen3_coder", "a </tool_call> b"),
    ("hermes", "</tool_call></tool_call>"),
    ("hermes", "<tool_call>{bad json</tool_call>"),
    ("qwen3_coder", "a < b and <t and <tool"),
]


@pytest.mark.parametrize(("dialect", "text"), NO_CALL)
def test_what_is_no_call(dialect: str, text: str) -> None:
    answer = parse_all_ways(text, TOOLS, dialect=dialect)
    assert answer.calls == []
    for word in ("unknown", "bad json", "a <", " b"):
        assert (word in text) == (word in answer.content)


@pytest.mark.parametrize("cut", range(1, len(XML.format("value")) - len("\n</tool_call>")))
def test_a_call_that_a_limit_cuts_is_not_whole(cut: int) -> None:
    """Dynamo's hermes parser closes a cut string, which runs a command that the model had not finished."""
    answer = parse_all_ways(XML.format("value")[:cut], TOOLS, finish="length")
    assert answer.ended == []
    for _, arguments in answer.calls:
        with pytest.raises(json.JSONDecodeError):
            json.loads(arguments)
