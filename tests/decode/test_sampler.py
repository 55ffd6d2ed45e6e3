"""Draws: the right distribution, a function of (row, history, seed, position), and honest margins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgellm.decode.params import SamplingParams
from edgellm.decode.sampler import Sampler
from edgellm.errors import EdgeLLMError


class Rows:
    """Logits given as an array [rows, vocab]; `dense` counts rows that were read."""

    def __init__(self, data: NDArray[np.float32]) -> None:
        self.data = data
        self.dense = 0

    @property
    def rows(self) -> int:
        return len(self.data)

    def greedy(self) -> NDArray[np.int64]:
        return self.data.argmax(axis=1)

    def row(self, index: int) -> NDArray[np.float32]:
        self.dense += 1
        return self.data[index]


def row_of(*values: float) -> Rows:
    return Rows(np.array([values], np.float32))


def draws(rows: Rows, params: SamplingParams, count: int) -> list[int]:
    sampler = Sampler(params, [])
    found = []
    for _ in range(count):
        found.append(sampler.draw(rows, 0).token)
        sampler.advance(0)
    return found


def test_greedy_touches_no_row() -> None:
    rows = row_of(0, 3, 3, 1)
    for params in (SamplingParams(), SamplingParams(temperature=1e-6)):
        assert Sampler(params, [1, 2]).draw(rows, 0).token == 1
    assert rows.dense == 0


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 3}, [0, 1, 3]),
        ({"top_p": 0.6}, [0, 1]),
        ({"min_p": 0.3}, [0, 1]),
        ({"top_k": 4, "top_p": 0.99, "min_p": 0.01, "temperature": 2.0}, [0, 1, 2, 3]),
    ],
)
def test_distribution(params: dict[str, Any], kept: list[int]) -> None:
    logits = np.array([2.0, 1.5, 0.0, 0.5, -1.0, -2.0])
    full = {"temperature": 1.0, "seed": 11, **params}
    scaled = np.exp(logits / full["temperature"])
    expected = np.zeros(6)
    expected[kept] = scaled[kept] / scaled[kept].sum()
    count = 8000
    found = np.bincount(draws(row_of(*logits), SamplingParams(**full), count), minlength=6)
    assert found[expected == 0].sum() == 0
    wanted = expected[expected > 0] * count
    assert ((found[expected > 0] - wanted) ** 2 / wanted).sum() < 25  # at most 5 degrees of freedom: one in 7,000


def test_a_large_vocabulary_is_drawn_in_pieces() -> None:
    """A heavy token in each piece, in proportion; the pieces that cannot win are skipped."""
    row = np.full(70_000, -60.0, np.float32)
    heavy = [5, 20_000, 40_000, 69_999]
    row[heavy] = np.log([0.1, 0.2, 0.3, 0.4])
    found = np.bincount(draws(Rows(row[None]), SamplingParams(temperature=1.0, seed=3), 1500), minlength=70_000)
    assert found.sum() == found[heavy].sum()
    wanted = np.array([0.1, 0.2, 0.3, 0.4]) * 1500
    assert ((found[heavy] - wanted) ** 2 / wanted).sum() < 21  # 3 degrees of freedom: one in 10,000


@given(st.integers(0, 2**64 - 1), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_position_counts_prompt_and_output_alike(seed: int, position: int, data: int) -> None:
    rows = Rows(np.random.default_rng(data).normal(0, 1, (1, 50)).astype(np.float32))
    params = SamplingParams(temperature=1.0, seed=seed)
    expected = Sampler(params, [0] * position).draw(rows, 0)
    sampler = Sampler(params, [0])
    for _ in range(position - 1):
        sampler.draw(rows, 0)
        sampler.draw(rows, 0)  # looking twice changes nothing
        sampler.advance(1)
    assert sampler.draw(rows, 0) == expected


@given(
    st.integers(2, 200),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([1.0, 0.9, 0.3]),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_shift_smaller_than_the_margin_changes_nothing(
    size: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, close: bool
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 0.01 if close else 2.0, size).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    draw = Sampler(params, [1], margins=True).draw(Rows(row[None]), 0)
    assert draw.margin is not None
    assert draw.margin >= 0
    if draw.margin < 1e-5:
        return
    plain = Sampler(params, [1])
    for _ in range(5):
        shift = rng.uniform(-1, 1, size) * (min(draw.margin, 1e3) * 0.45)
        moved = row.astype(np.float64) + shift
        assert plain.draw(Rows(moved.astype(np.float32)[None]), 0).token == draw.token


def test_margins_at_a_known_tie() -> None:
    draw = Sampler(SamplingParams(), [], margins=True).draw(row_of(1.0, 3.0, 2.5), 0)
    assert (draw.token, draw.margin) == (1, 0.5)
    draw = Sampler(SamplingParams(temperature=1.0, top_k=1), [], margins=True).draw(row_of(1.0, 3.0, 2.5), 0)
    assert (draw.token, draw.margin) == (1, 0.5)


def test_logprobs_ignore_what_the_processors_did() -> None:
    params = SamplingParams(temperature=1.0, top_k=1, logit_bias={2: 100.0}, logprobs=2)
    draw = Sampler(params, []).draw(row_of(0.0, 1.0, -1.0), 0)
    assert draw.token == 2
    assert draw.logprob is not None
    assert draw.logprob.logprob == pytest.approx(-1 - np.log(np.exp([0, 1, -1]).sum()), abs=1e-5)
    assert [token for token, _ in draw.logprob.top] == [1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [SamplingParams(temperature=1.0), SamplingParams(presence_penalty=1.0)])
def test_broken_logits_are_an_error(bad: float, params: SamplingParams) -> None:
    with pytest.raises(EdgeLLMError, match="not finite"):
        Sampler(params, []).draw(row_of(1.0, bad, 0.0), 0)
