"""Marks: what a client wrote comes back exactly, and never holds the text of a control token on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.errors import RequestError
from edgellm.text.marks import MARK, Protector, restore

TOKENS = ["<|im_start|>", "<|im_end|>", "<think>", "ab", "ba"]
TEXTS = st.lists(st.sampled_from([*TOKENS, "<", "<|im_", "end|>", "aba", MARK, "\ufdd1", "é", "\n"])).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, behind=st.sampled_from([*TOKENS, "|im_end|>", "b", "a", "think>"]))
def test_protected_text_hides_every_token_and_comes_back(text: str, behind: str) -> None:
    protected = Protector(TOKENS).protect(text, "x")
    assert restore(protected) == text
    assert not any(token in protected for token in TOKENS)
    joined = protected + behind
    for token in TOKENS:  # nothing is made together with what a template writes behind it
        assert all(at >= len(protected) for at in range(len(joined)) if joined.startswith(token, at))


def test_nested_values_are_protected_keys_too_and_surrogates_named() -> None:
    value = Protector(TOKENS).protect_all({"<think>": ["abc", {"n": 1, "x": None}]}, "tools")
    assert value == {f"<{MARK}think>": [f"a{MARK}bc", {"n": 1, "x": None}]}
    with pytest.raises(RequestError, match=r"tools\[0\]\.d"):
        Protector(TOKENS).protect_all([{"d": "\ud83d"}], "tools")
