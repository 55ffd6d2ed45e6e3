from __future__ import annotations

import numpy as np
import pytest
from attention_inputs import ancestors, assert_attention, attention_tensors, tiny, tree_attention, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import needs_compiler, run_both

from edgellm.kernels.attention import ATTN_PREFILL, TREE_ATTN_PARTIAL
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import empty_tensors

pytestmark = needs_compiler
CHUNK = tiny("f32", 80, max_pages=5)  # two blocks of five warps per KV head


def check(sizes: Sizes, seed: int, context: int, count: int, likeness: float = 0.0, sharpness: float = 1.0) -> None:
    tensors = attention_tensors(
        ATTN_PREFILL,
        sizes,
        np.random.default_rng(seed),
        context=context,
        count=count,
        stored=context + count,
        likeness=likeness,
        sharpness=sharpness,
    )
    made, expected = run_both(ATTN_PREFILL, sizes, tensors)
    assert_attention(made["context"][:count], expected["context"][:count])


@settings(deadline=None, max_examples=6)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 240),
    st.integers(1, 80),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_a_chunk_after_a_context(seed: int, context: int, count: int, likeness: float, sharpness: float) -> None:
    check(CHUNK, seed, context, count, likeness, sharpness)


@pytest.mark.parametrize(("context", "count"), [(0, 1), (0, 32), (31, 2), (32, 32), (63, 1), (64, 33), (240, 80)])
def test_ends_of_tiles_and_pages(context: int, count: int) -> None:
    check(CHUNK, context, context, count)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(wide("bf16", 16), id="heads of 256, bfloat16"),
        pytest.param(tiny("f16", 3), id="three rows, float16"),
    ],
)
def test_shapes_and_types(sizes: Sizes) -> None:
    check(sizes, 1, 70, sizes.rows - 1, likeness=0.5, sharpness=2.0)


def test_a_chunk_is_a_tree_without_branches() -> None:
    sizes = tiny("f32", 16, tail=128, splits=3)
    tree = attention_tensors(TREE_ATTN_PARTIAL, sizes, np.random.default_rng(4), context=56, count=16)
    tree["ancestors"][:16] = ancestors(range(-1, 15), sizes.words)
    by_tree, _ = tree_attention(sizes, tree)
    chunk = empty_tensors(ATTN_PREFILL, CHUNK)
    chunk.update((name, tree[name].copy()) for name in ("k_pages", "v_pages", "control", "kv_scale"))
    chunk["page_table"][: sizes.max_pages] = tree["page_table"]
    chunk["q"][...] = np.nan
    chunk["q"][:16] = tree["q"]
    for token in range(56, 72):
        place = tree["page_table"][token // sizes.page], token % sizes.page
        for part in "kv":
            chunk[f"{part}_pages"][place] = tree[f"tail_{part}"][token - 56]
    made, _ = run_both(ATTN_PREFILL, CHUNK, chunk)
    assert_attention(made["context"][:16], by_tree)
