"""Messages and channels: what is reasoning, what is content, what is a call, and what only looks like a header."""

from __future__ import annotations

from typing import Any

import pytest
from parsed import Answer, parse, parse_all_ways, tool

from edgellm.text.deltas import ContentDelta, ReasoningDelta
from edgellm.text.dialects import make_parser

TOOLS = [tool("read", path="string", limit="integer"), tool("now")]
NEXT = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a"}<|call|>'
MADE = (("read", '{"path": "a"}'),)


def read(text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect="harmony", **options)


def message(channel: str, text: str, end: str = "<|end|>") -> str:
    return f"<|channel|>{channel}<|message|>{text}{end}"


def test_channels() -> None:
    text = message("analysis", "Why?") + NEXT + message("commentary", "Soon.") + NEXT + CALL
    assert read(text).key() == ("Soon.", "Why?", MADE, (0,))
    text = message("analysis", " r\n") + NEXT + message("final", "\n Hi. ", "<|return|>")
    assert read(text).key()[:2] == ("Hi. ", "r")
    assert read(message("final", "Hi.", "")).content == "Hi."
    assert read(f"{NEXT}<|message|>Hi.").content == "Hi."
    assert read("<|message|>Hi.").content == "Hi."


def test_messages_of_one_kind_begin_on_new_lines() -> None:
    parts = [("analysis", "r1"), ("commentary", "c1"), ("analysis", "r2"), ("final", "c2"), ("final", "")]
    answer = read(NEXT.join(message(channel, text) for channel, text in parts))
    assert (answer.reasoning, answer.content) == ("r1\nr2", "c1\nc2")


def test_the_prompt_may_have_opened_the_reasoning() -> None:
    text = f"why<|end|>{NEXT}{message('final', 'So.')}"
    assert read(text, thinking=True).key()[:2] == ("So.", "why")
    assert read("I will now edit", thinking=True).key()[:2] == ("", "I will now edit")
    assert read(f"Look.\n{CALL}", thinking=True).key() == ("", "Look.", MADE, (0,))


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        CALL.removesuffix("<|call|>"),
        CALL.replace("<|call|>", "<|end|>"),
        CALL.replace(" <|constrain|>json", "<|constrain|>json"),
        CALL.replace("<|constrain|>json", "json"),
        CALL.replace(" <|constrain|>json", ""),
        CALL.replace("<|constrain|>json", "code"),
        CALL.replace("commentary", "analysis"),
        CALL.replace("commentary", ""),
        CALL.replace("functions.", ""),
        ' to=functions.read<|channel|>commentary<|message|>{"path": "a"}<|call|>',
        'to=functions.read<|channel|>commentary <|constrain|>json<|message|>{"path": "a"}',
        NEXT + CALL,
        f'{NEXT} to=functions.read<|channel|>analysis <|constrain|>json<|message|>{{"path": "a"}}<|call|>',
        CALL.replace("{", "\n{"),
        CALL.replace('{"path": "a"}', '"{\\"path\\": \\"a\\"}"'),
    ],
)
def test_forms_of_a_call(call: str) -> None:
    assert read(call).key() == ("", "", MADE, (0,))
    before = message("analysis", "Hm.")
    if not call.startswith((" to", "to")):
        assert read(f"{before}{call}{NEXT}{CALL}").key() == ("", "Hm.", MADE * 2, (0, 1))
        assert read(f"{call}\n{NEXT}{message('final', 'Done.')}").key() == ("Done.", "", MADE, (0,))


def test_messages_to_others_are_text_with_their_header() -> None:
    for call in (CALL.replace("read", "nope"), CALL.replace("functions.read", "browser.search")):
        answer = read(call)
        assert (answer.content, answer.calls) == (call.removesuffix("<|call|>"), [])
        answer = read(call.replace("commentary", "analysis"))
        assert answer.reasoning == call.removesuffix("<|call|>").replace("commentary", "analysis")


def test_what_is_no_object_is_no_call() -> None:
    for body in ("print(1)", "[1]", '"a"', "", "12"):
        call = f"<|channel|>commentary to=functions.read<|message|>{body}"
        answer = read(call + "<|call|>")
        assert (answer.content, answer.calls) == (call, [])
    answer = read(CALL.replace("}", ', "limit": None}'))
    assert (answer.arguments(), answer.ended, answer.content) == ([("read", {"path": "a"})], [], "None}")


def test_a_cut_call() -> None:
    for text, closed in [(CALL[: CALL.index('"}')], {"path": "a"}), (CALL[: CALL.index('"a')], {})]:
        answer = read(text)
        assert (answer.arguments(), answer.ended) == ([("read", closed)], [0])
        assert read(text, finish="length").ended == []


@pytest.mark.parametrize(
    "text",
    [
        "Plain text.",
        "to be or not to be",
        "to=do: the list",
        " to=functions.read and so on",
        "the <|channel|> tag",
        "<|channel|>",
        "<|channel|>analysis and <|channel|>final words",
        "<|channel|>other<|message|>x",
        "<|channel|>final\n<|message|>x",
        "<|start|>user<|message|>x",
        "<|start|>assistant is a role",
        "an <|end|> tag, a <|call|> tag",
        "a stray <|message|> and <|constrain|>json",
        "<|channel|><|channel|><|start|>",
        "<|channel|>commentary to=functions." + "x" * 400 + "<|message|>{}",
    ],
)
def test_what_only_looks_like_a_header_flows_on(text: str) -> None:
    assert read(text).key() == (text, "", (), ())
    inside = message("analysis", f"a {text} b", "")
    assert read(inside).reasoning == f"a {text} b"


def test_end_tags_end_a_message_only_before_a_header_or_the_end() -> None:
    assert read(message("final", "a <|end|> b <|return|>", "<|end|>")).content == "a <|end|> b <|return|>"
    assert read(message("final", "a", "<|end|>\n")).content == "a\n"
    assert read(message("analysis", "r", "")  + NEXT + message("final", "c")).key()[:2] == ("c", "r")  # fmt: skip
    far = message("final", "a", "<|end|>" + " " * 40)
    assert read(far + "x").content == "a<|end|>" + " " * 40 + "x"


def test_text_flows_at_once() -> None:
    parser = make_parser("harmony", TOOLS, thinking_open=False)
    assert parser.feed("<|channel|>analysis<|message|>so a <") == [ReasoningDelta("so a")]
    assert parser.feed(" b") == [ReasoningDelta(" < b")]
    assert parser.feed("<|end|><|start|>assistant<|channel|>final<|message|>Yes") == [ContentDelta("Yes")]


def test_without_tools_channels_are_still_split() -> None:
    parser = make_parser("harmony", TOOLS, thinking_open=False, parse_tools=False)
    answer = Answer()
    answer.add(parser.feed(message("analysis", "r") + NEXT + message("final", "c") + NEXT + CALL) + parser.finish(True))
    assert answer.key()[:3] == ("c\n" + NEXT + CALL.removesuffix("<|call|>"), "r", ())


def test_many_openers_take_linear_time() -> None:
    for unit in (
        "<|channel|>",
        "<|start|>assistant",
        "<|channel|>analysis to=",
        "<|end|> ",
        CALL[:-9],
        "<|end|>" + " " * 17,
    ):
        parse(unit * (60_000 // len(unit)), TOOLS, dialect="harmony", sizes=[11])
