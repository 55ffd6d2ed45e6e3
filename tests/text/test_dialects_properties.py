"""Properties of every dialect's parser on generated answers; EDGELLM_EXAMPLES sets how many (default 150 per form)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsed import FORMS, calls, parse, tool

from edgellm.text.dialects import visible_markers

EXAMPLES = int(os.environ.get("EDGELLM_EXAMPLES", "150"))
TOOLS = [tool("bash", command="string", n="integer"), tool("put", value="object", items="array"), tool("now")]
NAMES = frozenset(("bash", "put", "now"))
WORDS = [
    "Hello, ",
    "so (it) is; ",
    "\n",
    "\n\n",
    " ",
    "a",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    '"',
    "\\",
    "<",
    "日😀",
    "```\n",
    "1",
]
OBJECTS = {
    "hermes": "<tool_call>{}</tool_call>",
    "nemotron_deci": "<TOOLCALL>[{}]</TOOLCALL>",
    "llama3_json": "\n{}",
    "mistral list": "[TOOL_CALLS] [{}]",
    "mistral named": "[TOOL_CALLS] {}",
}
THINKING = ("<think>", "</think>", "[THINK]", "[/THINK]")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
arguments_of = {
    "bash": st.fixed_dictionaries({}, optional={"command": st.text(max_size=12), "n": st.integers()}),
    "put": st.fixed_dictionaries(
        {},
        optional={
            "value": st.dictionaries(st.text(max_size=4), json_values, max_size=3),
            "items": st.lists(json_values, max_size=3),
        },
    ),
    "now": st.just({}),
    "nope": st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=4), max_size=2),
}


def made_of(names: list[str]) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    one = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), arguments_of[name]))
    return st.lists(one, min_size=1, max_size=3)


@st.composite
def broken(draw: st.DrawFn, form: str) -> str:
    """Calls with a part cut out, put in or put twice."""
    text = calls(form, *draw(made_of(["bash", "put", "now", "nope"])))
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 12)))
    return (
        text[:start]
        + draw(st.sampled_from(["", text[start:end] * 2, "None", '"', "\\", ",", "}", "é", "\\ud83d"]))
        + text[end:]
    )


@st.composite
def objects(draw: st.DrawFn, form: str) -> str:
    """A call as an object with its members in any order, repeated, or with the arguments in a string."""
    ((name, arguments), *_) = draw(made_of(["bash", "put", "now", "nope"]))
    written = json.dumps(arguments)
    members = [
        f'"name": "{name}"',
        f'"arguments": {draw(st.sampled_from([written, json.dumps(written), "null", "1"]))}',
        f'"parameters": {written}',
        '"id": "x"',
        '"other": [{"a": "}"}]',
    ]
    chosen = draw(st.lists(st.sampled_from(members), max_size=4))
    return OBJECTS[form].replace("{}", "{" + ", ".join(chosen) + "}")


def answers(form: str) -> st.SearchStrategy[str]:
    marks = [*sorted(visible_markers(form.split()[0])), *THINKING[:2]]
    whole = made_of(["bash", "put", "now", "nope"]).map(lambda made: calls(form, *made))
    cut = st.tuples(whole, st.integers(0, 80)).map(lambda pair: pair[0][: pair[1]])
    other = objects(form) if form in OBJECTS else whole
    part = st.one_of(st.sampled_from(WORDS), st.sampled_from(marks), whole, cut, broken(form), other)
    return st.lists(part, max_size=7).map("".join)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize("form", FORMS)
def test_any_answer_in_any_pieces(form: str) -> None:
    dialect = form.split()[0]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        answers(form),
        st.lists(st.integers(1, 9), min_size=1, max_size=30),
        st.booleans(),
        st.sampled_from(["stop", "length"]),
    )
    def check(text: str, sizes: list[int], thinking: bool, finish: str) -> None:
        options: dict[str, Any] = {"dialect": dialect, "thinking": thinking, "finish": finish}
        whole = parse(text, TOOLS, **options)
        for cut in (sizes, [1]):
            assert parse(text, TOOLS, sizes=cut, **options).key() == whole.key()
        for index, (name, arguments) in enumerate(whole.calls):
            assert name in NAMES
            if finish == "stop" or index in whole.ended:
                assert isinstance(json.loads(arguments, object_pairs_hook=without_repeats), dict)
        marks = visible_markers(dialect) if dialect == "harmony" else THINKING
        if not whole.calls and not any(mark in text for mark in marks):
            shown = text.lstrip() if thinking else text
            assert (whole.reasoning, whole.content) == ((shown, "") if thinking else ("", shown))

    check()


@pytest.mark.parametrize("form", FORMS)
def test_calls_come_back_as_written(form: str) -> None:
    """Any arguments, from any pieces; the value of a number keeps its text."""

    @settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(made_of(["bash", "put", "now"]), st.lists(st.integers(1, 9), min_size=1, max_size=30))
    def check(made: list[tuple[str, dict[str, Any]]], sizes: list[int]) -> None:
        answer = parse(f"So:\n{calls(form, *made)}\n", TOOLS, dialect=form.split()[0], sizes=sizes)
        assert answer.content == "So:"
        assert answer.arguments() == made
        assert answer.ended == list(range(len(made)))

    check()
