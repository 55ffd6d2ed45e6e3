"""Whether a value stops inside a JSON string."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.text.open_string import OpenString
from edgellm.text.values import STRING

ARRAY = frozenset({"array"})


def inside(*parts: str, types: frozenset[str] = ARRAY) -> bool:
    string = OpenString(types)
    for part in parts:
        string.add(part)
    return string.inside


@pytest.mark.parametrize("text", ['["a', '\n [ "a\\"', '["a", "b\\\\\\"', '{"k": "v"}, "', '["'])
def test_open(text: str) -> None:
    assert inside(text)
    assert inside(*text)
    assert not inside(text, "\n"), "JSON has no line break in a string"
    assert not inside(text, types=STRING)


@pytest.mark.parametrize("text", ["", "  ", '"a', "12", '["a"', '["a\\\\"', '["a\\', "[", '[\\"a"'])
def test_not_open_or_nothing_to_look_into(text: str) -> None:
    assert inside(text) == (text == '["a\\')
    assert inside(*text) == inside(text)


@given(st.lists(st.text(alphabet='a"\\\n', max_size=6), max_size=4), st.lists(st.integers(1, 4), min_size=1))
def test_whole_json_is_never_open_and_cuts_do_not_matter(values: list[str], sizes: list[int]) -> None:
    text, parts, at = json.dumps(values), [], 0
    for size in sizes * len(text):
        parts.append(text[at : at + size])
        at += size
    assert not inside(text)
    assert not inside(*parts)
    for end in range(len(text)):
        assert inside(text[:end]) == inside(*text[:end])
