"""Texts against constraints."""

from __future__ import annotations

from edgellm.decode.constraint import Constraint
from edgellm.text.tokenizer import Tokenizer


def passes(constraint: Constraint | None, tokenizer: Tokenizer, text: str, *, plain: bool = False) -> bool:
    """Whether the whole text gets through and may end there.

    Args:
        plain: what looks like a token of the tokenizer is spelled as text.
    """
    assert constraint is not None
    for token in [*tokenizer.encode(text, allow_special=not plain), tokenizer.eos_token_ids[0]]:
        mask = constraint.mask()
        assert mask is not None
        if not mask[token]:
            return False
        constraint.advance(token)
    return True
