"""Noise is a function of (seed, position, token) and has the Gumbel distribution."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgellm.decode.randomness import GUMBEL_MAX, gumbel

SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS, st.integers(0, 2**20), st.lists(st.integers(0, 300_000), min_size=1, max_size=50))
def test_noise_of_a_token_does_not_depend_on_the_others(seed: int, position: int, tokens: list[int]) -> None:
    together = gumbel(seed, position, np.array(tokens))
    alone = [gumbel(seed, position, np.array([token]))[0] for token in tokens]
    assert together.tolist() == alone
    assert np.isfinite(together).all()
    assert together.max() < GUMBEL_MAX


def test_distribution() -> None:
    tokens = np.arange(200_000)
    for seed, position in ((0, 0), (1, 0), (0, 1), (2**64 - 1, 12345)):
        uniform = np.exp(-np.exp(-gumbel(seed, position, tokens)))
        counts = np.histogram(uniform, 100, (0, 1))[0]
        chi_square = ((counts - 2000) ** 2 / 2000).sum()
        assert chi_square < 160  # 99 degrees of freedom: one in 10,000


def test_positions_and_seeds_are_independent() -> None:
    base = gumbel(7, 100, np.arange(50_000))
    for seed, position in ((7, 101), (8, 100), (7, 99), (7 + 2**32, 100)):
        other = gumbel(seed, position, np.arange(50_000))
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.025
        assert abs(np.corrcoef(base[:-1], other[1:])[0, 1]) < 0.025
    along = np.array([gumbel(7, position, np.array([42]))[0] for position in range(4000)])
    assert abs(along.mean() - 0.5772) < 0.1
    assert abs(np.corrcoef(along[:-1], along[1:])[0, 1]) < 0.08
