from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_inputs import large, tiny, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import Arrays, needs_compiler, run_both

from edgellm.kernels.attention import (
    ATTN_PREFILL,
    ATTN_PREP,
    KV_COMMIT,
    KV_COPY_PAGE,
    KV_WRITE,
    TREE_ATTN_PARTIAL,
)
from edgellm.kernels.inputs import fill_bytes
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, POOL, Kernel, empty_tensors

CHUNK = tiny("bf16", 40)
DRAFTS = tiny("bf16", 16, tail=128, layers=3)
FEW_DRAFTS = tiny("bf16", 5, layers=2)


def random_bytes(kernel: Kernel, sizes: Sizes, seed: int) -> Arrays:
    """`fill_bytes` of new tensors."""
    tensors = empty_tensors(kernel, sizes)
    fill_bytes(tensors, sizes, np.random.default_rng(seed))
    return tensors


def check(kernel: Kernel, sizes: Sizes, tensors: Arrays) -> Arrays:
    """What the kernel made: exactly what the reference made, which is not what was there."""
    made, expected = run_both(kernel, sizes, tensors)
    for name in ("k_pages", "v_pages"):
        assert made[name].tobytes() == expected[name].tobytes()
        assert made[name].tobytes() != tensors[name].tobytes()
    return made


@needs_compiler
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(0, 216), st.integers(1, 40))
def test_the_rows_of_a_chunk_follow_the_context(seed: int, context: int, count: int) -> None:
    tensors = random_bytes(KV_WRITE, CHUNK, seed)
    tensors["control"][:3] = context, count, 0
    check(KV_WRITE, CHUNK, tensors)


@needs_compiler
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(0, 224), st.integers(1, 2**32 - 1), st.sampled_from([DRAFTS, FEW_DRAFTS]))
def test_accepted_rows_follow_the_context_in_all_layers(seed: int, context: int, mask: int, sizes: Sizes) -> None:
    tensors = random_bytes(KV_COMMIT, sizes, seed)
    tensors["control"][[CONTEXT, COUNT, POOL]] = context, 16, sizes.pages
    tensors["accepted"][0] = np.uint32(mask | 1).astype(np.int32)
    check(KV_COMMIT, sizes, tensors)


@needs_compiler
def test_accepting_nothing_writes_nothing() -> None:
    tensors = random_bytes(KV_COMMIT, DRAFTS, 1)
    made, _ = run_both(KV_COMMIT, DRAFTS, tensors)
    assert made["k_pages"].tobytes() == tensors["k_pages"].tobytes()


@needs_compiler
@pytest.mark.parametrize(("source", "target"), [(0, 6), (5, 2)])
def test_a_page_is_copied_in_all_layers(source: int, target: int) -> None:
    tensors = random_bytes(KV_COPY_PAGE, DRAFTS, 2)
    tensors["copy"][:] = source, target, DRAFTS.pages
    check(KV_COPY_PAGE, DRAFTS, tensors)
    tensors["copy"][:2] = source
    made, _ = run_both(KV_COPY_PAGE, DRAFTS, tensors)
    assert made["v_pages"].tobytes() == tensors["v_pages"].tobytes()


@needs_compiler
@pytest.mark.parametrize("kernel", [KV_WRITE, KV_COMMIT, KV_COPY_PAGE])
def test_tokens_of_four_heads_of_256(kernel: Kernel) -> None:
    sizes = large("bf16", 4, layers=2)
    tensors = random_bytes(kernel, sizes, 3)
    if kernel is KV_COPY_PAGE:
        tensors["copy"][:] = 3, 1, sizes.pages
    else:
        tensors["control"][[CONTEXT, COUNT, POOL]] = 63, 3, sizes.pages
    if kernel is KV_COMMIT:
        tensors["accepted"][:] = 0b1011, 3
    check(kernel, sizes, tensors)


@pytest.mark.parametrize(
    ("kernel", "changed", "reason"),
    [
        (TREE_ATTN_PARTIAL, {"head_dim": 96}, "head_dim must be 64, 128 or 256"),
        (TREE_ATTN_PARTIAL, {"kv_heads": 4}, "cannot share"),
        (ATTN_PREFILL, {"page": 48}, "a page of 48 tokens"),
        (ATTN_PREP, {"rotary_dim": 24}, "rotary_dim 24 must be a multiple of 16"),
        (ATTN_PREP, {"rows": 200}, "200 rows do not fit"),
        (KV_WRITE, {"rows": 200}, "200 rows do not fit"),
        (KV_COMMIT, {"head_dim": 4}, "a token of 4 bytes"),
    ],
)
def test_sizes_that_a_kernel_cannot_do_are_refused(kernel: Kernel, changed: dict[str, int], reason: str) -> None:
    fitting = wide("bf16", 16)
    assert kernel.refuses(fitting) is None
    assert reason in (kernel.refuses(replace(fitting, **changed)) or "")
