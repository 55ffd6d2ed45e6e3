"""Packed tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cache import TokenKey
from edgellm.cache.keys import common_tokens, path_hash, salt_digest, unpack

tokens = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=20)


@given(a=tokens, b=tokens)
def test_order_and_common_prefix(a, b) -> None:
    x, y = TokenKey(a).data, TokenKey(b).data
    assert (x < y) == (a < b)
    same = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))
    assert common_tokens(x, y) == same
    assert unpack(x) == tuple(a)


@given(a=tokens)
def test_every_form_packs_alike(a) -> None:
    key = TokenKey(a)
    assert TokenKey(np.array(a, np.int64)).data == TokenKey(tuple(a)).data == TokenKey(key).data == key.data
    assert len(key) == len(a)
    assert key.tokens() == tuple(a)
    assert unpack(key[1:3]) == tuple(a[1:3])


@pytest.mark.parametrize("bad", [[-1], [2**32], np.array([-1]), np.array([2**40])])
def test_ids_out_of_range(bad) -> None:
    with pytest.raises(OverflowError):
        TokenKey(bad)


@pytest.mark.parametrize("bad", [[1.5], ["a"], np.array([1.0])])
def test_not_integers(bad) -> None:
    with pytest.raises(TypeError):
        TokenKey(bad)


def test_bytes_must_be_whole_tokens() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        TokenKey.from_bytes(b"12345")


def test_hashes() -> None:
    assert salt_digest("") == bytes(16)
    assert salt_digest("a") != salt_digest("b")
    assert salt_digest("\ud800")  # whatever a client sends
    assert path_hash(salt_digest(""), b"abcd") != path_hash(salt_digest("a"), b"abcd")
