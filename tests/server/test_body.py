"""Bodies: everything that is not one clean JSON object is refused, quickly and by name."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import RequestError
from edgellm.server.body import MAX_DEPTH, parse_object

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _json), st.booleans())
def test_every_well_formed_object_is_read_as_it_is(value: dict[str, object], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_an_object_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(parse_object(data), dict)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b'{"a":}', "line 1, column 6"),
        (b"[]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a":"\xff"}', "not valid UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not valid UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":1,"b":2,"a":3}', "duplicate key 'a'"),
        (b'{"m":[{"x":1,"x":1}]}', "duplicate key 'x'"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nested deeper"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    ],
)
def test_malformed_bodies(body: bytes, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        parse_object(body)
    assert caught.value.code == "invalid_json"


def test_the_deepest_allowed_nesting() -> None:
    levels = MAX_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * levels + b"]" * levels + b"}")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"a":"\ud83d"}', "a"),
        (rb'{"a":"\uDE00\ud83d"}', "a"),
        (rb'{"messages":[{"content":"ok"},{"content":"emoji \ud83d end"}]}', "messages[1].content"),
        (rb'{"messages":[{"content":[{"text":"\ude00"}]}]}', "messages[0].content[0].text"),
        (rb'{"a":{"\ud83d":1}}', r"a.\ud83d"),
    ],
)
def test_lone_surrogates_are_refused_with_their_place(body: bytes, param: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        parse_object(body)
    assert caught.value.param == param


def test_whole_surrogate_pairs_and_nul_are_text() -> None:
    assert parse_object(rb'{"a":"\ud83d\ude00 \u0000"}') == {"a": "😀 \0"}
