"""The input of custom tools comes out of the arguments byte for byte, however they are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.server.responses.raw_input import RawInput


def read(arguments: str, sizes: list[int]) -> str:
    raw, out, at = RawInput(), "", 0
    for size in [*sizes, len(arguments)]:
        out += raw.add(arguments[at : at + size])
        at += size
    return out + raw.end()


@settings(max_examples=500)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n😀é\u2028\x00')),
    ascii_only=st.booleans(),
    space=st.sampled_from(["", " ", "\n  "]),
    sizes=st.lists(st.integers(1, 9), max_size=40),
)
def test_any_text(text: str, ascii_only: bool, space: str, sizes: list[int]) -> None:
    value = json.dumps(text, ensure_ascii=ascii_only)
    assert read(f'{{{space}"input":{space}{value}{space}}}', sizes) == text


@given(
    arguments=st.text(st.sampled_from('{}"input: ,\\nu0041d83de00x[]5')),
    head=st.sampled_from(["", '{"input": "']),
    sizes=st.lists(st.integers(1, 5), max_size=30),
)
def test_cuts_change_nothing(arguments: str, head: str, sizes: list[int]) -> None:
    assert read(head + arguments, sizes) == read(head + arguments, [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"note": "n", "input": "x"}', "x"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "cut', "cut"),
        ('{"input": "\\ud83d alone"}', "\ufffd alone"),
        ('{"input": "\\uzzzz"}', "\\uzzzz"),
        ('{"input": "x", "more": "y"}', "x"),
    ],
)
def test_other_shapes(arguments: str, text: str) -> None:
    assert read(arguments, []) == read(arguments, [1] * len(arguments)) == text
