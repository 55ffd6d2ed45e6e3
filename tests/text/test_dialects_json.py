"""What the dialects with JSON objects accept as a call, and what they do with what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from parsed import Answer, parse, parse_all_ways, tool

from edgellm.text.deltas import ContentDelta, ToolCallStart
from edgellm.text.dialects import make_parser

TOOLS = [tool("read", path="string", limit="integer"), tool("now")]
WRAPPED = {
    "hermes": "<tool_call>\n{}\n</tool_call>",
    "nemotron_deci": "<TOOLCALL>[{}]</TOOLCALL>",
    "llama3_json": "{}",
    "mistral": "[TOOL_CALLS][{}]",
}


@pytest.fixture(params=tuple(WRAPPED))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(dialect: str, text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect=dialect, **options)


def one(dialect: str, call: str) -> Answer:
    return read(dialect, WRAPPED[dialect].format(call))


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "read", "arguments": {"path": "a"}}', {"path": "a"}),
        ('{"name": "read", "parameters": {"path": "a"}}', {"path": "a"}),
        ('{"arguments": {"path": "a", "limit": [1]}, "name": "read"}', {"path": "a", "limit": [1]}),
        ('{\n  "id": "x1",\n  "type": "function",\n  "name": "read",\n  "arguments": {\n"limit": 2}\n}', {"limit": 2}),
        ('{"name": "read", "arguments": {"path": "a"}, "id": "abc", "extra": [{"b": null}]}', {"path": "a"}),
        ('{"name": "read"}', {}),
        ('{"name": "read", "arguments": {}}', {}),
        ('{"name": "read", "arguments": null}', {}),
        ('{"name": "read", "arguments": ""}', {}),
        ('{"name": "read", "arguments": "{\\"path\\": \\"a\\\\n\\", \\"x\\": [1]}"}', {"path": "a\n", "x": [1]}),
        ('{"name": "read", "arguments": {"path": "a", "path": "b"}}', {"path": "a"}),
        ('{"name": "read", "arguments": {"path": "a", "p\\u0061th": [1]}}', {"path": "a"}),
        ('{"name": "read", "arguments": {"path": {"a": 1, "b": [{"c": 2, "c": [3]}], "a": 2}}}',
         {"path": {"a": 1, "b": [{"c": 2}]}}),
        ('{"name": "read", "name": "now", "arguments": {"path": "a"}, "arguments": {"path": "b"}}', {"path": "a"}),
        ('{"name": "read", "arguments": {"path": "line\none\ttab"}}', {"path": "line\none\ttab"}),
        ('{"name": "read", "arguments": {"path": "\\u65e5\\ud83d\\ude00 \\ud83d! \\\\ \\/ \\""}}',
         {"path": '日😀 \ufffd! \\ / "'}),
        ('{"name": "r\\u0065ad", "arguments": {"path": "a"}', {"path": "a"}),
    ],
)  # fmt: skip
def test_calls(dialect: str, call: str, arguments: dict[str, Any]) -> None:
    answer = one(dialect, call)
    assert answer.arguments() == [("read", arguments)]
    assert (answer.content, answer.ended) == ("", [0])


def test_numbers_keep_their_text(dialect: str) -> None:
    numbers = '{"a": 1, "b": 1.0, "c": 1.10, "d": 1e2, "e": -0, "f": ' + "9" * 400 + ', "g": [0.10, 1E+5]}'
    assert one(dialect, f'{{"name": "read", "arguments": {numbers}}}').calls == [("read", numbers)]


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "read", "arguments": 1}',
        '{"name": "read", "arguments": [{"path": "a"}]}',
        '{"name": "read", "arguments": "path: a"}',
        '{"name": "read", "arguments": "[1]"}',
        '{"name": "read", "arguments": "{\\"path\\": NaN}"}',
        '{"name": "read", "arguments": "{} x"}',
        '{"name": 5, "arguments": {}}',
        '{"name": null, "arguments": {"path": "a"}}',
        '{"arguments": {"path": "a"}}',
        '{"arguments": {"path": NaN}, "name": "read"}',
        '{"arguments": {"path": "a"}, "name": "nope"}',
        '{"arguments": {"path": "a"}, "name": ""}',
        '{"path": "a"}',
        '{"path": "a", "name": "read", "arguments": {}}',
        '{"type": "object", "properties": {}, "name": "read"}',
        '{"id": [1], "name": "read"}',
        '{"arguments": {}, "arguments": {}, "name": "read"}',
        "{}",
        "{'name': 'read', 'arguments': {}}",
        '{name: "read", "arguments": {}}',
        '{"name" "read"}',
        '{"name": "Read", "arguments": {}}',
        '[["name", "read"]]',
        '{"name": "read", "arguments" {}}',
        '{"name": "read",, "arguments": {}}',
    ],
)
def test_what_is_no_call_is_text(dialect: str, call: str) -> None:
    text = WRAPPED[dialect].format(call)
    answer = read(dialect, f"So:\n{text} more")
    assert (answer.content, answer.calls) == (f"So:\n{text} more", [])


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"path": "a", "limit": NaN}', {"path": "a"}),
        ('{"path": "a", "limit": -Infinity}', {"path": "a"}),
        ('{"path": "a", "limit": None}', {"path": "a"}),
        ('{"path": "a", "limit": 01}', {"path": "a"}),
        ('{"path": "a", "limit": [1, 2,]}', {"path": "a", "limit": [1, 2]}),
        ('{"path": "a",}', {"path": "a"}),
        ('{"path": "a" "limit": 2}', {"path": "a"}),
        ('{"path": "say "hi" now"}', {"path": "say "}),
        ('{"path": "C:\\Users"}', {"path": "C:"}),
        ('{"path": "a", limit: 2}', {"path": "a"}),
        ("{'path': 'a'}", {}),
        ('{"limit": ' + "9" * 5000 + "}", {}),
        ('{"path": "a", "limit": [}', {"path": "a", "limit": []}),
    ],
)
def test_a_fault_behind_the_name_leaves_the_call_without_an_end(
    dialect: str, arguments: str, sent: dict[str, Any]
) -> None:
    """What is out is closed to an object; it is no call to run, and the text from the fault on is shown."""
    answer = one(dialect, f'{{"name": "read", "arguments": {arguments}}}')
    (name, given), *others = answer.arguments()
    assert (name, others, answer.ended) == ("read", [], [])
    assert given == sent
    assert answer.content
    good = WRAPPED[dialect].format('{"name": "now"}')
    again = read(dialect, WRAPPED[dialect].format(f'{{"name": "read", "arguments": {arguments}}}') + "\n" + good)
    assert [name for name, _ in again.calls] == ["read", "now"]
    assert again.ended == [1]


def test_a_missing_last_brace_is_forgiven(dialect: str) -> None:
    answer = one(dialect, '{"name": "read", "arguments": {"path": "a"}')
    assert (answer.arguments(), answer.ended) == ([("read", {"path": "a"})], [0])


def test_the_end_of_the_turn_closes_what_can_be_closed(dialect: str) -> None:
    start = WRAPPED[dialect].split("{}")[0] + '{"name": "read", "arguments": '
    for arguments, closed in [
        ('{"path": "a\\', {"path": "a"}),
        ('{"path": "a\\ud83d', {"path": "a"}),
        ('{"path": "a", "li', {"path": "a"}),
        ('{"path": "a", "limit": ', {"path": "a"}),
        ('{"path": "a", "limit": 12', {"path": "a", "limit": 12}),
        ('{"path": "a", "limit": 12.', {"path": "a"}),
        ('{"path": "a", "limit": tru', {"path": "a"}),
        ('{"path": [1, {"b": "c', {"path": [1, {"b": "c"}]}),
        ('{"path": [1, {"b":', {}),
        ("{", {}),
    ]:
        answer = read(dialect, start + arguments)
        assert (answer.arguments(), answer.ended, answer.content) == ([("read", closed)], [0], "")
        assert read(dialect, start + arguments, finish="length").ended == []
    for unsure in ('"', '"{\\"path\\": 1}', ""):
        assert read(dialect, start + unsure).content == start + unsure


def test_before_the_name_nothing_comes_out(dialect: str) -> None:
    parser = make_parser(dialect, TOOLS, thinking_open=False)
    lead = WRAPPED[dialect].split("{}")[0]
    assert parser.feed(lead + '{"arguments": {"path": "a"}, "name": "rea') == []
    assert isinstance(parser.feed('d"')[0], ToolCallStart)


def test_a38_a_wrapper_with_closing_tags_of_another_form() -> None:
    text = '<tool_call>\n{"name": "read", "arguments": 1}\n</parameter>\n</function>\n</tool_call>'
    assert read("hermes", text).content == text


def test_a02_a15_hermes_tags_in_prose() -> None:
    for text in ("a stray </tool_call> here", "`<tool_call>` {x}", "<tool_call> <tool_call> {", "<tool_call>{"):
        assert read("hermes", text).content == text
    call = '<tool_call>{"name": "now"}'
    assert (
        read("hermes", f"The <tool_call> tag. {call}{call}</tool_call></tool_call> So.").content
        == "The <tool_call> tag. So."
    )


def test_a02_a_missing_opening_tag_is_recovered() -> None:
    call = '{"name": "read", "arguments": {"path": "a"}}'
    answer = read("hermes", f"I'll look.\n\n{call}\n</tool_call>")
    assert answer.key() == ("I'll look.", "", (("read", '{"path": "a"}'),), (0,))
    assert len(read("hermes", f"<tool_call>\n{call}\n{call}\n</tool_call>").calls) == 2
    for text in (
        call,
        f"{call} and",
        f"say {call}</tool_call>",
        f"```\n{call}</tool_call>",
        f"{call[:-2]}</tool_call>",
    ):
        assert read("hermes", text).key() == (text, "", (), ())


def test_nemotron_lists() -> None:
    now, read_call = '{"name": "now"}', '{"name": "read", "arguments": {"path": "a"}}'
    for text in (f"<TOOLCALL>{now}</TOOLCALL>", f"<TOOLCALL> [ {now} ] </TOOLCALL>", f"<TOOLCALL>[{now}"):
        assert read("nemotron_deci", text).key() == ("", "", (("now", "{}"),), (0,))
    text = f'<TOOLCALL>[{now}, {{"name": "nope"}}, {read_call}]</TOOLCALL>'
    answer = read("nemotron_deci", text)
    assert (answer.calls, answer.content) == ([("now", "{}")], text[len(f"<TOOLCALL>[{now}") :])
    assert read("nemotron_deci", f"<TOOLCALL>[{now}]</TOOLCALL>, and so on").content == ", and so on"


def test_llama3_objects_count_at_line_starts_only() -> None:
    now = '{"name": "now", "parameters": {}}'
    for text in (f"say {now}", f"```json\n{now}\n```", f"  {now}", "<|python_tag|>print(1)", f"x; {now}"):
        assert read("llama3_json", text).key() == (text, "", (), ())
    for text in (
        f"<|python_tag|>{now}",
        f"<|python_tag|> {now};{now}",
        f"{now}\n\n{now}",
        f"{now} {now}",
        f"{now};\n{now}",
    ):
        assert {name for name, _ in read("llama3_json", text).calls} == {"now"}
    assert read("llama3_json", f"Look:\n{now}; then").content == "Look:; then"


def test_llama3_other_objects_flow_on() -> None:
    parser = make_parser("llama3_json", TOOLS, thinking_open=False)
    assert parser.feed('{"answer"') == [ContentDelta('{"answer"')]
    assert parser.feed(': {"name": "now"') == [ContentDelta(': {"name": "now"')]
    assert parser.feed('}\n{"type": "object", "properties"') == [ContentDelta('}\n{"type": "object", "properties"')]
    assert parser.feed('}\n{"name": "Bob"') == [ContentDelta('}\n{"name": "Bob"')]


def test_mistral_named_calls() -> None:
    for text in ('[TOOL_CALLS]read[ARGS]{"path": "a"}', '[TOOL_CALLS]read[CALL_ID]Ab1Cd2Ef3[ARGS]{"path": "a"}',
                 '[TOOL_CALLS] read {"path": "a"}', '[TOOL_CALLS]read[ARGS]"{\\"path\\": \\"a\\"}"',
                 '[TOOL_CALLS]{"name": "read", "arguments": {"path": "a"}}'):  # fmt: skip
        assert read("mistral", f"{text}[TOOL_CALLS]now[ARGS]{{}}").arguments() == [("read", {"path": "a"}), ("now", {})]
    for text in (
        "[TOOL_CALLS]read[ARGS]",
        "[TOOL_CALLS]read[ARGS][1]",
        "[TOOL_CALLS]read is a",
        "[TOOL_CALLS][ARGS]{}",
    ):
        assert read("mistral", text).key() == (text, "", (), ())
    assert read("mistral", "[THINK]why[/THINK]So.").key() == ("So.", "why", (), ())
    assert read("mistral", "why[/THI").content == "why[/THI"


def test_pieces_of_one_delta_each_agree(dialect: str) -> None:
    """A16, A17: the end of one call and the start of the next in one delta."""
    text = WRAPPED[dialect].format('{"name": "read", "arguments": {"path": "1"}}') + "\n" + WRAPPED[dialect].format(
        '{"name": "read", "arguments": {"limit": 2}}'
    )  # fmt: skip
    for cut in range(1, len(text)):
        answer = parse(text, TOOLS, dialect=dialect, sizes=[cut, len(text)])
        assert [json.loads(arguments) for _, arguments in answer.calls] == [{"path": "1"}, {"limit": 2}]


def test_values_nest_only_as_deep_as_clients_read(dialect: str) -> None:
    for depth, ended in ((100, [0]), (5000, [])):
        answer = parse(
            WRAPPED[dialect].format('{"name": "read", "arguments": {"path": ' + "[" * depth + "]" * depth + "}}"),
            TOOLS,
            dialect=dialect,
        )
        assert answer.ended == ended
        assert answer.arguments()[0][0] == "read"
