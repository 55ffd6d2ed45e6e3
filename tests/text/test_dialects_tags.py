"""The dialects that write the parts of a call between tags: DeepSeek and GLM."""

from __future__ import annotations

from typing import Any

import pytest
from parsed import Answer, calls, parse_all_ways, tool

TOOLS = [
    tool(
        "read",
        path="string",
        limit="integer",
        size="number",
        flag="boolean",
        tags="array",
        maybe={"type": ["integer", "null"]},
    ),
    tool("function", x="integer"),
    tool("now"),
]
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def deepseek(text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect="deepseek_v3", **options)


def glm(text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect="glm45", **options)


@pytest.mark.parametrize(
    "call",
    [
        f'{CALL}function{SEP}read\n```json\n{{"path": "a"}}\n```{END_CALL}',
        f'{CALL}function{SEP}read\n```json\n{{"path": "a"}}\n```',
        f'{CALL}function{SEP}read\n```json\n{{"path": "a"}}',
        f'{CALL}function{SEP}read```\n{{"path": "a"}}```{END_CALL}',
        f'{CALL}function{SEP}read\n{{"path": "a"}}{END_CALL}',
        f'{CALL}read{SEP}{{"path": "a"}}{END_CALL}',
        f'{CALL} read {SEP}\n{{"path": "a"}}\n{END_CALL}',
        f'{CALL}read{SEP}"{{\\"path\\": \\"a\\"}}"{END_CALL}',
    ],
)
def test_deepseek_forms(call: str) -> None:
    for text in (f"{BEGIN}{call}{END}", f"{BEGIN}\n{call}\n{END}", call, f"{BEGIN}{call}"):
        answer = deepseek(f"Hm.\n\n{text}\n")
        assert answer.key() == ("Hm.", "", (("read", '{"path": "a"}'),), (0,))
    two = deepseek(f"{BEGIN}{call}\n{call}{END}")
    assert two.arguments() == [("read", {"path": "a"})] * 2


def test_deepseek_a_function_named_function() -> None:
    plain = f'{CALL}function{SEP}{{"x": 1}}{END_CALL}'
    fenced = f'{CALL}function{SEP}function\n```json\n{{"x": 2}}\n```{END_CALL}'
    assert deepseek(f"{BEGIN}{plain}{fenced}{END}").arguments() == [("function", {"x": 1}), ("function", {"x": 2})]


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN} and {END} surround calls",
        f"{CALL}read is called",
        f"{CALL}read{SEP}[1]{END_CALL}",
        f"{CALL}code{SEP}read\n{{}}",
        f"{CALL}function{SEP}nope\n```json\n{{}}\n```{END_CALL}",
        f"{CALL}{SEP}{{}}",
        f"{BEGIN}{CALL}",
        f"{BEGIN}{CALL}read{SEP}",
        f"{CALL}{CALL}read",
    ],
)
def test_deepseek_other_text_flows_on(text: str) -> None:
    assert deepseek(text).key() == (text, "", (), ())


def test_deepseek_a_call_behind_a_broken_one() -> None:
    text = f"{BEGIN}{CALL}read{SEP}oops{BEGIN}{CALL}now{SEP}{{}}{END_CALL}{END}"
    assert deepseek(text).key() == (f"{BEGIN}{CALL}read{SEP}oops", "", (("now", "{}"),), (0,))


def pair(key: str, value: str, gap: str = "\n") -> str:
    return f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}"


@pytest.mark.parametrize("gap", ["\n", "", "\n  "])
def test_glm_values_follow_the_schema(gap: str) -> None:
    body = "".join(
        pair(key, value, gap)
        for key, value in [("path", "12"), ("limit", "12"), ("size", "1.50"), ("flag", "True"), ("tags", '["a", 1]'),
                           ("maybe", "None"), ("extra", '{"a": 1}')]
    )  # fmt: skip
    answer = glm(f"Hi.\n<tool_call>read{gap}{body}</tool_call>")
    arguments = (
        '{"path": "12", "limit": 12, "size": 1.50, "flag": true, "tags": ["a", 1], "maybe": null, "extra": {"a": 1}}'
    )
    assert answer.key() == ("Hi.", "", (("read", arguments),), (0,))


def test_glm_empty_and_strange_values() -> None:
    """A12, A13: an empty number was not given; what does not fit its type stays text."""
    body = pair("limit", "") + pair("path", "") + pair("size", "3.10.5-beta") + pair("flag", "2025-06-15T10:30:00Z")
    assert glm(f"<tool_call>read\n{body}</tool_call>").arguments() == [
        ("read", {"path": "", "size": "3.10.5-beta", "flag": "2025-06-15T10:30:00Z"})
    ]
    for dropped in (pair("limit", ""), pair("", "x"), pair(" ", "x")):
        assert glm(f"<tool_call>read\n{dropped}</tool_call>").calls == [("read", "{}")]


@pytest.mark.parametrize(
    "value",
    ["    if x:\n        return 1\n", "\n\na\n", "</arg_value> and more", "<arg_key>b</arg_key>", "</tool_call>",
     "</think>", "<tool_call>read\n<arg_key>path", "</arg_value>\n</arg_value>x", '日😀 "q" \\ \t',
     "</arg_value", "<arg_value>"],
)  # fmt: skip
def test_glm_values_keep_tags_and_space(value: str) -> None:
    answer = glm(calls("glm45", ("read", {"path": value}), ("now", {})))
    assert answer.arguments() == [("read", {"path": value}), ("now", {})]


def test_glm_a_repeated_key_keeps_the_first() -> None:
    answer = glm(f"<tool_call>read\n{pair('path', 'a')}{pair('path', 'b')}{pair('limit', '1')}</tool_call>")
    assert answer.calls == [("read", '{"path": "a", "limit": 1}')]


def test_glm_a_missing_end_tag_is_forgiven_before_another_call_and_at_the_end() -> None:
    start = f"<tool_call>read\n{pair('path', 'a')}"
    assert glm(f"{start}<tool_call>now</tool_call>").arguments() == [("read", {"path": "a"}), ("now", {})]
    for text in (start, start.removesuffix("</arg_value>\n"), start.removesuffix("_value>\n"), f"{start}<arg_key>lim"):
        answer = glm(text)
        assert (answer.calls, answer.ended, answer.content) == ([("read", '{"path": "a"}')], [0], "")
        assert glm(text, finish="length").ended == []


@pytest.mark.parametrize(
    ("body", "sent", "rest"),
    [
        (f"{pair('path', 'a')}so {pair('limit', '1')}</tool_call>", '{"path": "a</arg_value>\\nso ', None),
        ("<arg_key>path</arg_key>=<arg_value>a</arg_value></tool_call>", "{}", "=<arg_value>a</arg_value></tool_call>"),
        ("<arg_key>pa\nth</arg_key>", "{}", "th</arg_key>"),
        (f"<arg_key>{'k' * 300}</arg_key>", "{}", "k" * 44 + "</arg_key>"),
    ],
)
def test_glm_malformed_parts(body: str, sent: str, rest: str | None) -> None:
    """What stands behind a value without a tag of the form is part of the value; other faults leave no end."""
    answer = glm(f"<tool_call>read\n{body}")
    assert answer.calls[0][1].startswith(sent)
    assert (answer.ended, answer.content) == (([0], "") if rest is None else ([], rest))


@pytest.mark.parametrize(
    "text",
    ["The <tool_call> tag", "<tool_call>read the file", "<tool_call>nope\n</tool_call>", "<tool_call></tool_call>",
     "<tool_call>\n{\"name\": \"read\"}\n</tool_call>", "a stray </arg_value> and </tool_call>", "<tool_call>read",
     "<tool_call>read\n<tool_call>", "<arg_key>path</arg_key>"],
)  # fmt: skip
def test_glm_other_text_flows_on(text: str) -> None:
    assert glm(text).key() == (text, "", (), ())
