from __future__ import annotations

import numpy as np
import pytest
from attention_inputs import (
    NAN,
    SCALES,
    ancestors,
    assert_attention,
    attention_tensors,
    draw,
    large,
    random_tree,
    tiny,
    tree_attention,
    wide,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import largest_difference, needs_compiler, run_both

from edgellm.kernels.attention import TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import FIRST, empty_tensors

pytestmark = needs_compiler
GROWING = tiny("f32", 16, tail=128, splits=3)  # the draft tree of the MTP layer


def check(sizes: Sizes, seed: int, context: int, count: int, start: int = 0, error: float = 1e-3, **how: float) -> None:
    rng = np.random.default_rng(seed)
    tensors = attention_tensors(TREE_ATTN_PARTIAL, sizes, rng, context=context, count=count, start=start, **how)
    tree = random_tree(rng, start + count)
    tensors["ancestors"][: start + count] = ancestors(tree, sizes.words)
    assert_attention(*tree_attention(sizes, tensors), error=error)


@settings(deadline=None, max_examples=10)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 256),
    st.integers(1, 16),
    st.integers(0, 112),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_a_step_of_a_growing_tree(
    seed: int, context: int, count: int, start: int, likeness: float, sharpness: float
) -> None:
    check(GROWING, seed, context, count, start, likeness=likeness, sharpness=sharpness)


@pytest.mark.parametrize("context", [0, 1, 31, 32, 33, 63, 64, 65, 256])
def test_ends_of_tiles_and_pages(context: int) -> None:
    check(GROWING, context, context, 1, 31)


@pytest.mark.parametrize("start", [0, 16, 31, 32, 96, 112])
def test_ends_of_tiles_of_the_tail(start: int) -> None:
    check(GROWING, start, 40, 16, start)


@pytest.mark.parametrize(
    ("sizes", "context", "count"),
    [
        pytest.param(tiny("f32", 1, splits=2), 70, 1, id="one row, two query rows"),
        pytest.param(wide("f32", 16, splits=2), 130, 16, id="a tree of 16 with heads of 256"),
        pytest.param(wide("f32", 16, splits=2), 33, 3, id="a small tree in the same profile"),
        pytest.param(tiny("f16", 80), 10, 70, id="query rows of two blocks, float16"),
        pytest.param(large("bf16", 1, splits=3), 70, 1, id="one row of 24 heads, bfloat16"),
    ],
)
def test_shapes_and_types(sizes: Sizes, context: int, count: int) -> None:
    check(sizes, 1, context, count, likeness=0.5, sharpness=2.0)


@pytest.mark.parametrize("context", [1, 2, 33, 70])
def test_skipped_tokens_are_not_seen(context: int) -> None:
    rng = np.random.default_rng(context)
    tensors = attention_tensors(TREE_ATTN_PARTIAL, GROWING, rng, context=context, count=3)
    tensors["ancestors"][:3] = ancestors([-1, 0, 0], GROWING.words)
    tensors["control"][FIRST] = 1
    made, expected = tree_attention(GROWING, tensors)
    assert_attention(made, expected)
    page = tensors["page_table"][0]
    for name in ("k_pages", "v_pages"):
        tensors[name].view(np.uint8)[page, 0] = NAN
    np.testing.assert_array_equal(tree_attention(GROWING, tensors)[0], made)


def test_scores_far_apart_stay_finite() -> None:
    check(GROWING, 5, 90, 16, 40, sharpness=300.0, error=0.02)


def test_a_split_without_tokens_counts_for_nothing() -> None:
    rng = np.random.default_rng(2)
    tensors = empty_tensors(TREE_ATTN_REDUCE, GROWING)
    tensors["part_o"][...] = draw(rng, tensors["part_o"].shape)
    tensors["part_ml"][..., 0] = 100 * draw(rng, tensors["part_ml"].shape[:-1])
    tensors["part_ml"][..., 1] = 1 + rng.random(tensors["part_ml"].shape[:-1])
    tensors["part_ml"][1] = -1e30, 0
    tensors["part_o"][1] = np.nan
    made, expected = run_both(TREE_ATTN_REDUCE, GROWING, tensors)
    assert largest_difference(made["context"], expected["context"]) < 1e-5


def test_a_row_does_not_see_other_branches() -> None:
    tensors = attention_tensors(TREE_ATTN_PARTIAL, GROWING, np.random.default_rng(3), context=0, count=3)
    tensors["ancestors"][:3] = ancestors([-1, 0, 0], GROWING.words)
    codes = tensors["tail_v"][:3].astype(np.float64) * SCALES[1]
    made, _ = tree_attention(GROWING, tensors)
    tensors["tail_k"][1], tensors["tail_v"][1] = tensors["tail_k"][2], tensors["tail_v"][2]
    again, _ = tree_attention(GROWING, tensors)
    assert again[[0, 2]].tobytes() == made[[0, 2]].tobytes()
    np.testing.assert_allclose(made[0], codes[0].repeat(GROWING.group, axis=0).ravel(), rtol=1e-6)
