"""What comparable servers were reported to get wrong in parsing answers (the handed cases, in our own words)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import call, parse, parse_all_ways, tool

BASH = [tool("bash", command="string")]


def test_a02_a_missing_opening_tag_is_recovered() -> None:
    text = "I'll fetch it.\n\n<function=WebFetch>\n<parameter=url>\nhttps://example.com\n</parameter>\n</function>\n</tool_call>"
    answer = parse_all_ways(text, [tool("WebFetch", url="string")])
    assert answer.content == "I'll fetch it."
    assert answer.arguments() == [("WebFetch", {"url": "https://example.com"})]


@pytest.mark.parametrize("tools", [BASH, [*BASH, tool("get_weather", location="string")]])
@pytest.mark.parametrize("fence", ["", "```\n"])
def test_a03_prose_about_the_syntax_stays_text(tools: list[Any], fence: str) -> None:
    prose = (
        "A call looks like `<function=get_weather>` followed by `<parameter=location>`; close it with `</function>`."
    )
    text = fence + prose
    answer = parse_all_ways(text, tools)
    assert answer.content == text
    assert answer.calls == []


def test_a05_only_one_newline_at_each_end_belongs_to_the_form() -> None:
    old, new = "    if x:\n        return 1\n", "    if x:\n        return 2\n"
    answer = parse_all_ways(
        call("edit", old_string=old, new_string=new), [tool("edit", old_string="string", new_string="string")]
    )
    assert answer.arguments() == [("edit", {"old_string": old, "new_string": new})]


def test_a12_values_that_do_not_fit_their_type_stay_text() -> None:
    tools = [tool("f", when={}, ver="number")]
    answer = parse_all_ways(call("f", when="2025-06-15T10:30:00Z", ver="3.10.5-beta"), tools)
    assert answer.arguments() == [("f", {"when": "2025-06-15T10:30:00Z", "ver": "3.10.5-beta"})]


@pytest.mark.parametrize("empty", ["\n", ""])
def test_a13_empty_values(empty: str) -> None:
    parameters = f"<parameter=limit>{empty}</parameter>\n<parameter=note>{empty}</parameter>\n"
    text = f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"
    answer = parse_all_ways(text, [tool("f", limit="integer", note="string")])
    assert answer.arguments() == [("f", {"note": ""})]


@pytest.mark.parametrize("bad", ["<parameter=\nnote text\n", "<parameter=ids: [1]\n", "<parameter=note=\n"])
def test_a14_malformed_parameters_are_dropped(bad: str) -> None:
    text = (
        "<tool_call>\n<function=exec_command>\n<parameter=cmd>\necho a\n</parameter>\n"
        f"{bad}</parameter>\n</function>\n</tool_call>"
    )
    assert parse_all_ways(text, [tool("exec_command", cmd="string")]).arguments() == [
        ("exec_command", {"cmd": "echo a"})
    ]


def test_a15_a_mentioned_tag_does_not_hold_text_back() -> None:
    text = "The tag `<tool_call>` opens a call. " + "Then more ordinary words follow. " * 60
    answer = parse_all_ways(text, BASH)
    assert answer.content == text
    assert parse(text[:60], BASH, finish="length").content.startswith("The tag `<tool_call>` opens")


def test_a17_a18_calls_back_to_back() -> None:
    tools = [tool("a", x="integer"), tool("b", y="integer"), tool("read", path="string")]
    answer = parse_all_ways(call("a", x="1") + "\n" + call("b", y="2"), tools)
    assert answer.arguments() == [("a", {"x": 1}), ("b", {"y": 2})]
    twice = parse_all_ways(call("read", path="a.txt") + "\n" + call("read", path="b.txt"), tools)
    assert twice.arguments() == [("read", {"path": "a.txt"}), ("read", {"path": "b.txt"})]
    assert len(set(twice.ids)) == 2


def test_a25_a_call_cut_by_length_is_not_completed() -> None:
    answer = parse("<tool_call>\n<function=bash>\n<parameter=command>\nrm -rf /tmp/x", BASH, finish="length")
    assert answer.ended == []
    with pytest.raises(json.JSONDecodeError):
        answer.arguments()


def test_a26_unicode_and_quotes_in_arrays() -> None:
    first, second = [{"newText": 'café "quoted" \\n end'}], [{"newText": "naïve — ok"}]
    tools = [tool("edit", edits={"type": "array", "items": {"type": "object"}})]
    text = call("edit", edits=json.dumps(first)) + "\n" + call("edit", edits=json.dumps(second, ensure_ascii=False))
    assert parse_all_ways(text, tools).arguments() == [("edit", {"edits": first}), ("edit", {"edits": second})]


def test_a27_a_drafted_call_in_reasoning_is_not_made() -> None:
    draft, real = call("rm", path="/"), call("ls", path=".")
    text = f"Maybe I call {draft}? No, list first.\n</think>\n\n{real}"
    answer = parse_all_ways(text, [tool("rm", path="string"), tool("ls", path="string")], thinking=True)
    assert answer.arguments() == [("ls", {"path": "."})]
    assert draft in answer.reasoning


def test_a28_a_call_at_the_end_of_an_unclosed_block_is_recovered() -> None:
    text = "I should list files.\n" + call("ls", depth="2", path=".")
    answer = parse_all_ways(text, [tool("ls", path="string", depth="integer")], thinking=True)
    assert answer.arguments() == [("ls", {"depth": 2, "path": "."})]


def test_a30_a_repeated_parameter_keeps_the_first() -> None:
    for second in ("a", "b"):
        body = f"<parameter=path>\na\n</parameter>\n<parameter=path>\n{second}\n</parameter>\n"
        text = f"<tool_call>\n<function=read>\n{body}</function>\n</tool_call>"
        answer = parse_all_ways(text, [tool("read", path="string")])
        assert answer.arguments() == [("read", {"path": "a"})]
        assert answer.calls[0][1].count('"path"') == 1


def test_a31_a_turn_that_ends_in_reasoning() -> None:
    answer = parse_all_ways("I will now edit the file.", BASH, thinking=True)
    assert (answer.content, answer.reasoning, answer.calls) == ("", "I will now edit the file.", [])


def test_a34_nothing_is_evaluated() -> None:
    value = "__import__('os').getpid()"
    assert parse_all_ways(call("f", p=value), [tool("f", p="custom")]).arguments() == [("f", {"p": value})]


def test_a35_many_unclosed_openers() -> None:
    text = "<tool_call><function=" * 3000
    answer = parse(text, BASH, sizes=[7])  # 63 kB in small deltas: quadratic work would take minutes
    assert answer.content == text
    assert answer.calls == []


def test_a38_malformed_calls_never_become_arguments() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": 1}\n</parameter>\n</function>\n</tool_call>'
    answer = parse_all_ways(text, [tool("get_weather", city="string")])
    assert answer.calls == []
    bracket = '[Calling tool: read({"path":"a"})]'
    assert parse_all_ways(bracket, [tool("read", path="string")]).content == bracket


def test_undeclared_functions_stay_text() -> None:
    text = call("unknown", a="1")
    answer = parse_all_ways(text, BASH)
    assert answer.calls == []
    assert "<function=unknown>" in answer.content


def test_values_may_contain_the_syntax() -> None:
    value = "echo '</parameter>' # <parameter=x> and </function>"
    assert parse_all_ways(call("bash", command=value), BASH).arguments() == [("bash", {"command": value})]


def test_types_follow_the_schema() -> None:
    schema = {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "ref": {"$ref": "#/$defs/size"},
        "level": {"enum": ["1", "2"]},
        "obj": {"type": "object"},
        "big": {"type": "integer"},
        "nan": {"type": "number"},
    }
    tools = [tool("f", **schema)]
    tools[0]["function"]["parameters"]["$defs"] = {"size": {"type": "integer"}}
    values = {
        "n": "5",
        "x": "5",
        "flag": "True",
        "maybe": "None",
        "ref": "7",
        "level": "1",
        "obj": '{"a": [1]}',
        "big": "9" * 30,
        "nan": "NaN",
    }
    assert parse_all_ways(call("f", **values), tools).arguments() == [
        (
            "f",
            {
                "n": 5,
                "x": 5,
                "flag": True,
                "maybe": None,
                "ref": 7,
                "level": "1",
                "obj": {"a": [1]},
                "big": int("9" * 30),
                "nan": "NaN",
            },
        )
    ]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from('<>/=\n "\\abé😀{}')), st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_a_string_value_survives_any_chunking(value: str, sizes: list[int]) -> None:
    text = "Hi.\n" + call("bash", command=value)
    answer = parse(text, BASH, sizes=sizes)
    assert answer.key() == parse(text, BASH).key()
    assert answer.arguments() == [("bash", {"command": value})]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "<function=bash>", "</function>", "<parameter=command>", "</parameter>",
             "<think>", "</think>", "\n", " ", "x", "<", "text with words", "<function=nope>"]
        )
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from(["stop", "length"]),
)  # fmt: skip
def test_streamed_equals_whole_on_any_soup(parts: list[str], sizes: list[int], thinking: bool, finish: str) -> None:
    text = "".join(parts)
    whole = parse(text, BASH, thinking=thinking, finish=finish)
    assert parse(text, BASH, thinking=thinking, finish=finish, sizes=sizes).key() == whole.key()
    if finish == "stop":
        for _, arguments in whole.arguments():
            assert isinstance(arguments, dict)
