from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernel_parity import Arrays, largest_difference, needs_compiler, run_both
from numpy.typing import NDArray

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, empty_tensors
from edgellm.kernels.topk import DRAFT_TOPK, SAMPLE_TOPK

pytestmark = needs_compiler
SPEC = ModelSpec.from_config(PRESETS["tiny"].config)


def check(kernel: Kernel, logits: NDArray[Any], top_k: int) -> Arrays:
    """The kernel's outputs, which are the reference's."""
    rows, vocab = logits.shape
    sizes = dataclasses.replace(Sizes.of(SPEC, io="bf16", rows=rows, max_pages=1, top_k=top_k), vocab=vocab)
    tensors = empty_tensors(kernel, sizes)
    tensors["logits"][...] = logits
    made, expected = run_both(kernel, sizes, tensors)
    for name in ("ids", "values"):
        np.testing.assert_array_equal(made[name], expected[name])
    if "log_norm" in made:
        np.testing.assert_allclose(made["log_norm"], expected["log_norm"], rtol=1e-6, atol=1e-5)
    return made


def normal(rows: int, vocab: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("vocab", [4, 31, 129, 1000, 1001])
def test_vocabularies_that_fit_nothing(vocab: int) -> None:
    check(DRAFT_TOPK, normal(3, vocab), 4)
    check(SAMPLE_TOPK, normal(2, vocab), min(vocab, 64))


@pytest.mark.parametrize(("vocab", "kernel", "top_k"), [(32768, DRAFT_TOPK, 4), (248320, SAMPLE_TOPK, 64)])
def test_vocabularies_of_models(vocab: int, kernel: Kernel, top_k: int) -> None:
    check(kernel, normal(1, vocab), top_k)
    check(kernel, np.sort(normal(1, vocab)), top_k)


@settings(deadline=None, max_examples=25)
@given(
    hnp.arrays(
        np.float32,
        (2, 37),
        elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 88.5, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-45]),
    )
)
def test_ties_infinities_zeros_and_nan(logits: NDArray[Any]) -> None:
    check(DRAFT_TOPK, logits, 4)
    check(SAMPLE_TOPK, logits, 37)


def test_equal_logits_go_by_id() -> None:
    made = check(SAMPLE_TOPK, np.full((1, 2048), -2.5, np.float32), 64)
    assert made["ids"].tolist() == [list(range(64))]
    made = check(DRAFT_TOPK, np.zeros((1, 1001), np.float32), 4)
    np.testing.assert_allclose(made["log_norm"], np.log(1001), rtol=1e-6)


def test_the_best_may_all_be_with_one_thread() -> None:
    """Every 4096th vector of four belongs to the same thread, which keeps fewer than are asked for."""
    logits = normal(1, 32768)
    where = (np.arange(0, 32768, 4096)[:, None] + np.arange(4)).ravel()
    logits[0, where] = 100 + np.random.default_rng(2).permutation(where.size)
    made = check(SAMPLE_TOPK, logits, 48)
    assert set(made["ids"][0, :32].tolist()) == set(where.tolist())


def test_nan_loses_against_every_number() -> None:
    logits = np.full((2, 500), np.nan, np.float32)
    logits[0, 123] = -np.inf
    made = check(DRAFT_TOPK, logits, 4)
    assert made["ids"].tolist() == [[123, 0, 1, 2], [0, 1, 2, 3]]
    assert np.isneginf(made["log_norm"]).all()


def test_large_logits_do_not_overflow_the_norm() -> None:
    logits = normal(2, 1000)
    logits[0] += 1e4
    logits[1] -= 1e4
    made = check(DRAFT_TOPK, logits, 4)
    shifted = check(DRAFT_TOPK, normal(2, 1000), 4)["log_norm"] + np.array([[1e4], [-1e4]], np.float32)
    assert largest_difference(made["log_norm"], shifted) < 4e-3


def test_more_candidates_than_tokens_are_refused() -> None:
    sizes = dataclasses.replace(Sizes.of(SPEC, io="bf16", rows=1, max_pages=1, top_k=8), vocab=7)
    assert "7" in (SAMPLE_TOPK.refuses(sizes) or "")
