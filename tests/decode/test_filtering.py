"""Filters keep exactly what a full sort would keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgellm.decode.filtering import candidates, largest
from edgellm.decode.logprobs import token_logprob


def reference(
    row: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[list[int], float]:
    """Kept ids by a stable full sort, and how near the top_p edge was to falling elsewhere."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if top_k > 0:
        order = order[:top_k]
    scores = np.array([math.exp((float(row[token]) - float(row[order[0]])) / temperature) for token in order])
    mass = np.cumsum(scores) / scores.sum()
    slack = float(np.abs(mass - top_p).min())
    kept = order[: int(np.searchsorted(mass, top_p)) + 1] if top_p < 1 else order
    if min_p > 0:
        floor = np.float32(float(row[order[0]]) + temperature * math.log(min_p))
        kept = [token for token in kept if row[token] >= floor]
    return sorted(kept), slack


@st.composite
def rows(draw: st.DrawFn, low: int = 1, high: int = 5000) -> NDArray[np.float32]:
    size = draw(st.integers(low, high))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.normal(0, draw(st.sampled_from([0.01, 1.0, 5.0])), size).astype(np.float32)
    if draw(st.booleans()):
        row = np.round(row)  # many ties
    if draw(st.booleans()):
        row[rng.random(size) < 0.95] = -np.inf
        row[int(rng.integers(size))] = 1.0
    return row


@given(rows(), st.integers(1, 5000))
@settings(max_examples=150, deadline=None)
def test_largest(row: NDArray[np.float32], count: int) -> None:
    expected = sorted(sorted(range(len(row)), key=lambda token: (-row[token], token))[:count])
    assert largest(row, count).tolist() == expected


@given(
    rows(),
    st.floats(0.05, 2),
    st.sampled_from([0, 1, 2, 20, 300, 2000]),
    st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_filters(row: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    best = float(row.max())
    ids = candidates(row, best, temperature, top_k, top_p, min_p)
    expected, slack = reference(row, temperature, top_k, top_p, min_p)
    kept = list(range(len(row))) if ids is None else ids.tolist()
    if top_p < 1 and slack < 1e-5:  # the edge is within rounding: one token more or less
        assert abs(len(kept) - len(expected)) <= max(1, 1e-4 * len(row))
    else:
        assert [token for token in kept if row[token] > -np.inf] == [t for t in expected if row[t] > -np.inf]
    assert int(row.argmax()) in kept


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99999])
def test_wide_nucleus_of_a_large_vocabulary(top_p: float) -> None:
    row = np.random.default_rng(1).normal(0, 1, 30_000).astype(np.float32)
    ids = candidates(row, float(row.max()), 1.0, 0, top_p, 0.0)
    expected, _ = reference(row, 1.0, 0, top_p, 0.0)
    assert ids is not None
    assert abs(len(ids) - len(expected)) <= 2
    assert set(ids.tolist()) <= set(expected) or set(expected) <= set(ids.tolist())


def test_no_filter_is_no_work() -> None:
    assert candidates(np.zeros(10, np.float32), 0.0, 1.0, 0, 1.0, 0.0) is None


@given(rows(2, 600), st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_logprobs_are_the_models_own(row: NDArray[np.float32], top: int) -> None:
    token = int(row.argmax())
    found = token_logprob(row, token, top)
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    assert found.logprob == pytest.approx(exact[token], abs=1e-5)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top]
    assert [i for i, _ in found.top] == order
    assert [value for _, value in found.top] == pytest.approx([exact[i] for i in order], abs=1e-5)
