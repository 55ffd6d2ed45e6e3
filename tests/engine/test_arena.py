"""Pieces never overlap, and slabs go back when nothing in them is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.engine import arena
from edgellm.engine.arena import Arena, Piece


@given(st.lists(st.integers(-1, 30), max_size=80))
def test_pieces_keep_their_values(steps: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "SLAB_BYTES", 4 * 5 * 4)
        made = Arena(5)  # four pieces a slab
    held: list[tuple[Piece, int]] = []
    for number, step in enumerate(steps):
        if step < 0 or not held:
            piece = made.take()
            piece.values[:] = number
            held.append((piece, number))
        else:
            made.give(held.pop(step % len(held))[0])
        for piece, value in held:
            np.testing.assert_array_equal(piece.values, value)
    for piece, _ in held:
        made.give(piece)
    assert made.reserved <= 80  # one slab


def test_a_piece_larger_than_a_slab() -> None:
    made = Arena(arena.SLAB_BYTES // 4 + 1)
    assert made.take().slab != made.take().slab
