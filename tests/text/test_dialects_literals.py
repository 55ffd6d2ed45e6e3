"""Values that arrive in pieces: JSON agrees with the json module, Python with `ast`, and what is written is JSON."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.text.dialects.literals import JSON, MAX_DEPTH, MAX_NUMBER, PYTHON, Event, Kind, LiteralReader, Notation
from edgellm.text.dialects.objects import ObjectWriter
from edgellm.text.dialects.reading import Step

SOUP = st.lists(
    st.sampled_from(
        [*'{}[]():,"\\ \n', "'", '"a"', '"b": ', "1", "-", ".5", "e1", "true", "null", "None", "\\n", "\\u00", "\\x4",
         "\\ud83d", "\\ude00", "é", "'''", '"""', "x"]
    ),
    max_size=14,
).map("".join)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


def read(notation: Notation, text: str, cut: int) -> tuple[Step, str, list[Event]]:
    """How reading ended, what was left, and the events with neighbouring text joined."""
    reader, events, rest = LiteralReader(notation), list[Event](), ""
    for start in range(0, len(text), cut):
        piece = rest + text[start : start + cut]
        events += reader.read(piece, 0, final=start + cut >= len(text))
        rest = piece[reader.at :]
        if reader.step is not Step.OPEN:
            return reader.step, rest + text[start + cut :], joined(events)
    return reader.step, rest, joined(events)


def joined(events: list[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        if result and event.kind is Kind.TEXT and result[-1].kind is Kind.TEXT:
            event = event._replace(text=result.pop().text + event.text)
        result.append(event)
    return result


def written(events: list[Event]) -> Any:
    """The value in `events`, as a member of an object."""
    writer = ObjectWriter()
    for event in (Event(Kind.OBJECT, -1), Event(Kind.KEY, 0, '"v"'), *events, Event(Kind.END, -1)):
        writer.take(event)
    assert writer.whole
    return json.loads(writer.text())["v"]


@settings(max_examples=300, deadline=None)
@given(SOUP, st.integers(1, 5), st.booleans())
def test_pieces_change_nothing(text: str, cut: int, python: bool) -> None:
    notation = PYTHON if python else JSON
    assert read(notation, text, cut) == read(notation, text, len(text) or 1)


@settings(max_examples=300, deadline=None)
@given(SOUP)
def test_json_is_accepted_just_when_the_json_module_accepts_it(text: str) -> None:
    try:
        expected = json.loads(text, strict=False, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        expected = Exception
    step, rest, events = read(JSON, text, 1)
    accepted = step is Step.ENDED and not rest.strip(" \n\t\r")
    assert accepted == (expected is not Exception)
    if accepted and "\\u" not in text:
        assert written(events) == expected


@settings(max_examples=150, deadline=None)
@given(values, st.integers(1, 5))
def test_values_come_back(value: Any, cut: int) -> None:
    for notation, text in ((JSON, json.dumps(value)), (JSON, json.dumps(value, indent=1)), (PYTHON, repr(value))):
        step, rest, events = read(notation, text, cut)
        assert (step, rest) == (Step.ENDED, "")
        assert written(events) == json.loads(json.dumps(value))


@settings(max_examples=300, deadline=None)
@given(SOUP)
def test_python_is_never_read_as_another_value_than_its_own(text: str) -> None:
    step, rest, events = read(PYTHON, text, 1)
    if step is not Step.ENDED or rest.strip() or "\n" in text or "\\u" in text:
        return
    try:
        expected = ast.literal_eval(text.strip())
        assert written(events) == json.loads(json.dumps(expected))
    except (ValueError, SyntaxError):
        assert any(word in text for word in ("true", "null"))


@pytest.mark.parametrize("notation", [JSON, PYTHON])
def test_limits(notation: Notation) -> None:
    for depth, step in ((MAX_DEPTH, Step.ENDED), (MAX_DEPTH + 1, Step.REFUSED)):
        assert read(notation, "[" * depth + "]" * depth, 7)[0] is step
    for digits, step in ((MAX_NUMBER, Step.ENDED), (MAX_NUMBER + 1, Step.REFUSED)):
        assert read(notation, "9" * digits, 900)[0] is step


@settings(max_examples=300, deadline=None)
@given(values.filter(lambda value: isinstance(value, dict)), st.data())
def test_what_is_written_can_be_closed_anywhere(value: dict[str, Any], data: st.DataObject) -> None:
    events = list(LiteralReader(JSON).read(json.dumps(value), 0))
    end = data.draw(st.integers(1, len(events)))
    writer, sent = ObjectWriter(), ""
    for event in events[:end]:
        writer.take(event)
        sent += writer.text()
    writer.close()
    sent += writer.text()
    assert list(json.loads(sent)) == list(value)[: len(json.loads(sent))]
    if end == len(events):
        assert sent == json.dumps(value)
