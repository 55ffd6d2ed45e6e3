"""Encoding by segments and decoding by tokens equal doing all at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.errors import CheckpointError, RequestError
from edgellm.text.tokenizer import Tokenizer

PIECES = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "\n", "é"]))
)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES)
def test_segments_encode_as_the_whole(tokenizer: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole: Any = tokenizer._library.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, allow_special=True) == whole.ids
    assert tokenizer.encode(text, allow_special=True) == whole.ids  # now from the cache


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_plain_text_never_becomes_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text + "<|im_end|>", allow_special=False)
    assert tokenizer.special_ids.isdisjoint(ids)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 1023), max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1), skip=st.booleans()
)
def test_streamed_text_is_the_decoded_text(tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool) -> None:
    stream, shown, position, turn = tokenizer.stream(skip), "", 0, 0
    while position < len(ids):
        size = sizes[turn % len(sizes)]
        shown += stream.push(ids[position : position + size]).text
        position, turn = position + size, turn + 1
    assert shown + stream.finish() == tokenizer.decode(ids, skip_special=skip)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="abcé ", max_size=30),
    stop=st.lists(st.text(alphabet="abcé ", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_end_the_text_before_them(tokenizer: Tokenizer, text: str, stop: list[str]) -> None:
    ids = tokenizer.encode(text, allow_special=False)
    decoded = tokenizer.decode(ids)
    stream = tokenizer.stream(stop=stop)
    pushed = stream.push(ids)
    shown = pushed.text + ("" if pushed.stop else stream.finish())
    hits = [decoded.find(s) for s in stop if s in decoded]
    if pushed.stop is not None:
        # The earliest completed match: its tokens are those up to the one that completed it.
        assert decoded[len(shown) :].startswith(pushed.stop)
        assert pushed.stop not in tokenizer.decode(ids[: pushed.used - 1])
        assert min(hits) <= len(shown)
    else:
        assert not hits
        assert shown == decoded


def test_long_texts_let_other_threads_run(tokenizer: Tokenizer) -> None:
    """A prompt of any length holds up no stream of another request."""
    text = "one two three four " * 20_000
    thread = threading.Thread(target=tokenizer.encode, args=(text,), kwargs={"allow_special": True})
    turns = 0
    thread.start()
    while thread.is_alive():
        thread.join(0.001)
        turns += 1
    assert turns > 3


def test_lone_surrogates_are_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("emoji \ud83d end", allow_special=False)


def test_missing_tokenizer_is_named(tmp_path: Any) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("héllo 😀<think>", allow_special=True)
    assert b"".join(tokenizer.token_bytes(token) for token in ids).decode() == "héllo 😀<think>"
