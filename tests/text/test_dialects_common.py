"""What holds in every dialect: calls come back as written, everything else stays text, nothing runs by mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest
from parsed import FORMS, Answer, calls, parse, parse_all_ways, tool

from edgellm.text.deltas import ContentDelta, ToolCallArguments, ToolCallStart
from edgellm.text.dialects import AnswerParser, make_parser, visible_markers
from edgellm.text.parser import OutputParser

TOOLS = [
    tool("bash", command="string", timeout="integer"),
    tool("edit", path="string", edits={"type": "array", "items": {"type": "object"}}),
    tool("mcp.get-x_v2", n="integer", options="object"),
    tool("now"),
]
LS, NOW = ("bash", {"command": "ls -l"}), ("now", {})
THINKING = tuple(form for form in FORMS if form != "harmony")  # it has channels instead of a think block


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dialect(form: str) -> str:
    return form.split()[0]


def read(form: str, text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect=dialect(form), **options)


def new(form: str, *, thinking: bool = False) -> AnswerParser:
    return make_parser(dialect(form), TOOLS, thinking_open=thinking, id_seed="t")


@pytest.mark.parametrize(
    "text",
    ["", "Hello.", "  indented\n", "a, b; [c] {d} <e> (f)\n\n- [x] done, [link](url)\n```\n{}\n```\n", "日本 😀"],
)
def test_plain_text_is_content(form: str, text: str) -> None:
    answer = read(form, text)
    assert (answer.content, answer.reasoning, answer.calls) == (text, "", [])


@pytest.mark.parametrize(
    "made",
    [
        [LS],
        [NOW],
        [LS, NOW, ("bash", {"command": "a", "timeout": 5})],
        [("bash", {"command": "cat a.txt"}), ("bash", {"command": "cat b.txt"})],
        [("mcp.get-x_v2", {"n": int("9" * 40), "options": {"a": [1, {"b": None}], "c": {}, "d": [[]], "e": 1.5}})],
        [("edit", {"path": "日本語 😀", "edits": [{"newText": 'café "quoted" \\n end'}, {"newText": "naïve — ok"}]})],
        [("bash", {"command": "  a\tb\n\n  'c' \"d\" \\ \\n {}[](),;=`\n"})],
    ],
)
def test_calls_come_back_as_written(form: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    answer = read(form, calls(form, *made))
    assert answer.arguments() == made
    assert (answer.content, answer.ended) == ("", list(range(len(made))))
    assert len(set(answer.ids)) == len(made)


def test_the_tags_of_the_dialect_in_a_value(form: str) -> None:
    for mark in sorted(visible_markers(dialect(form))):
        made = [("bash", {"command": f"echo '{mark}' | grep {mark}"}), NOW]
        assert read(form, calls(form, *made)).arguments() == made


def test_text_around_calls(form: str) -> None:
    made = calls(form, LS, NOW)
    assert read(form, f"Before.\n\n{made}\n\nAfter.").content == "Before.\n\nAfter."
    assert read(form, f"{made}\n\nAfter.").content == "After."
    assert read(form, f"Before.\n\n{made}\n").content == "Before."


def test_an_undeclared_function_is_text(form: str) -> None:
    text = calls(form, ("nope", {"a": "1"}))
    answer = read(form, f"See:\n{text}")
    assert answer.calls == []
    assert answer.content.startswith("See:\n")
    assert "nope" in answer.content
    if form != "harmony":  # ends a message by a tag
        assert answer.content == f"See:\n{text}"
    two = read(form, f"{calls(form, LS)}\n{text}")
    assert two.arguments() == [LS]
    assert "nope" in two.content


def test_without_tools_calls_are_text(form: str) -> None:
    text = calls(form, LS)
    for parser in (
        make_parser(dialect(form), TOOLS, thinking_open=False, parse_tools=False),
        make_parser(dialect(form), [], thinking_open=False),
    ):
        answer = Answer()
        answer.add(parser.feed(text) + parser.finish(True))
        assert answer.calls == []
        assert "ls -l" in answer.content


def test_ids_are_those_of_the_first_parser(form: str) -> None:
    expected = parse(calls("qwen3_coder", LS, NOW), TOOLS).ids
    assert read(form, calls(form, LS, NOW)).ids == expected
    parser = new(form)
    parser.feed(calls(form, LS, NOW))
    assert parser.tool_calls == 2


def test_a_cut_call_gets_no_end(form: str) -> None:
    """The name may be out, the arguments never look whole."""
    text = calls(form, ("bash", {"command": "rm -rf /tmp/x", "timeout": 10}))
    for end in range(1, text.index("/tmp/x") + 4):
        answer = parse(text[:end], TOOLS, dialect=dialect(form), finish="length")
        assert answer.ended == []
        if answer.calls:
            with pytest.raises(json.JSONDecodeError):
                answer.arguments()


def test_a_call_open_at_the_end_of_the_turn_is_closed(form: str) -> None:
    text = calls(form, ("edit", {"path": "a\nb", "edits": [{"x": "1"}, {"x": ["2"]}]}))
    seen = set()
    for end in range(1, len(text) + 1):
        answer = parse(text[:end], TOOLS, dialect=dialect(form))
        assert answer.ended == list(range(len(answer.calls)))
        for name, arguments in answer.arguments():
            assert name == "edit"
            seen |= arguments.keys()
    assert seen == {"path", "edits"}


def test_the_name_and_string_arguments_flow_at_once(form: str) -> None:
    text = calls(form, ("bash", {"command": "ls 日😀 -l"}))
    parser = new(form)
    cut = text.index(" -l")
    begun = parser.feed(text[:cut])
    assert begun[0] == ToolCallStart(0, parse(text, TOOLS, dialect=dialect(form)).ids[0], "bash")
    assert begun[1:] == [ToolCallArguments(0, '{"command": "ls 日😀')]
    assert parser.feed(" -l") == [ToolCallArguments(0, " -l")]


@pytest.mark.parametrize("form", THINKING)
def test_drafts_in_reasoning_do_not_run(form: str) -> None:
    draft, real = calls(form, ("bash", {"command": "rm -rf /"})), calls(form, LS)
    answer = read(form, f"Maybe I call\n{draft}\n? No, list first.\n</think>\n\n{real}", thinking=True)
    assert answer.arguments() == [LS]
    assert answer.reasoning == f"Maybe I call\n{draft}\n? No, list first."
    for behind in ("</think>", " or not", "</think>\n\nDone.", "\n</think>"):
        assert read(form, f"Look.\n{draft}{behind}", thinking=True).calls == []
    assert read(form, f"Look.\n{draft}", thinking=True, finish="length").reasoning == f"Look.\n{draft}"
    open_draft = f"Look.\n{draft[: draft.index('rm') + 2]}"
    assert read(form, open_draft, thinking=True).reasoning == open_draft
    assert read(form, f"{open_draft}</think>Hi", thinking=True).content == "Hi"


@pytest.mark.parametrize("form", THINKING)
def test_calls_at_the_end_of_an_open_block_are_made(form: str) -> None:
    made = [("bash", {"command": "ls", "timeout": 2}), NOW]
    for end in ("", "\n"):
        answer = read(form, f"I should list files.\n{calls(form, *made)}{end}", thinking=True)
        assert answer.arguments() == made
        assert (answer.reasoning, answer.content) == ("I should list files.", "")
    broken = calls(form, LS) + "\n" + calls(form, NOW)[:-12]
    assert read(form, f"Look.\n{broken}", thinking=True, finish="length").calls == []


@pytest.mark.parametrize("form", THINKING)
@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("<think>r</think>\n\nHello", False, "r", "Hello"),
        ("<think>r</think>\n\nHello", True, "r", "Hello"),
        ("r</thi", True, "r</thi", ""),
        ("r</this is not a tag", True, "r</this is not a tag", ""),
        ("r1\n</think>\n\n<think>\nr2\n</think>\n\nanswer", True, "r1", "<think>\nr2\n</think>\n\nanswer"),
        ("\n</think>\n\nHello", False, "", "Hello"),
        ("say </think> twice", False, "", "say </think> twice"),
        ("I will now edit the file.", True, "I will now edit the file.", ""),
        (" \n", True, "", ""),
    ],
)
def test_reasoning_and_content(form: str, text: str, thinking: bool, reasoning: str, content: str) -> None:
    answer = read(form, text, thinking=thinking)
    assert (answer.reasoning, answer.content, answer.calls) == (reasoning, content, [])


def test_prose_that_mentions_tags_flows_on(form: str) -> None:
    for mark in sorted(visible_markers(dialect(form)) - {"<think>", "[THINK]"}):
        text = f"The tag `{mark}` and a bare {mark} open something. " + "Then more words follow. " * 40
        assert read(form, text).content == text
        parser, shown = new(form), ""
        for at in range(len(mark) + 60):
            for delta in parser.feed(text[at]):
                assert isinstance(delta, ContentDelta)
                shown += delta.text
            assert at - len(shown) < 2 * len(mark) + 20


def test_no_delta_ends_inside_an_escape(form: str) -> None:
    text = calls(form, ("bash", {"command": "q"})).replace("q", '日\\ud83d\\ude00\\n\\"')
    parser, fragments = new(form), []
    for char in text:
        fragments += [delta.fragment for delta in parser.feed(char) if isinstance(delta, ToolCallArguments)]
    for end in range(len(fragments)):
        sent = "".join(fragments[: end + 1])
        if sent.startswith('{"command": "') and (sent.endswith('\\"') or sent[-1] not in '"}'):
            json.loads(sent + '"}')["command"].encode()


def test_nothing_is_evaluated(form: str) -> None:
    made = [("bash", {"command": "__import__('os').getpid()"})]
    assert read(form, calls(form, *made)).arguments() == made
    code = calls(form, ("bash", {"command": "q"})).replace('"q"', "__import__('os').getpid()").replace("'q'", "f()")
    for _, arguments in read(form, code).arguments():
        assert arguments in ({}, {"command": "__import__('os').getpid()"}, {"command": "q"})


def test_work_is_linear(form: str) -> None:
    """Quadratic work on 60 kB would take minutes."""
    whole = calls(form, LS)
    begun = whole[: whole.index("ls -l")]
    units = [whole, begun, begun[:-4], begun[: begun.rindex("bash")], "\n{\n", "\n[bash("]
    for unit in (*units, *visible_markers(dialect(form))):
        parse(unit * (60_000 // len(unit)), TOOLS, dialect=dialect(form), sizes=[1000], thinking=unit == whole)
    for unit in ("x", "[", " ", "1", "</"):
        parse(begun + unit * (20_000 // len(unit)), TOOLS, dialect=dialect(form), sizes=[10])


def test_the_first_dialect_is_the_existing_parser() -> None:
    assert isinstance(make_parser("qwen3_coder", TOOLS, thinking_open=False), OutputParser)
