"""Inputs of the attention kernels: caches with NaN wherever nothing may be read, trees, queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import ml_dtypes
import numpy as np
from kernel_parity import Arrays, run_both
from numpy.typing import NDArray

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.kernels.attention import TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.reference.attention import to_e4m3
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.spec import Kernel, empty_tensors

NAN: Final = np.uint8(0x7F)  # as E4M3
SCALES: Final = np.array([0.05, 0.02], np.float32)  # of keys, of values
_TINY: Final = ModelSpec.from_config(PRESETS["tiny"].config)
_LARGE: Final = ModelSpec.from_config(PRESETS["qwen36-27b"].config)


def tiny(io: Io, rows: int, **sizes: Any) -> Sizes:
    """Two KV heads of two query heads of 64; the pool has more pages than a slot's table."""
    return Sizes.of(_TINY, io=io, rows=rows, **{"max_pages": 4, "pages": 7, **sizes})


def wide(io: Io, rows: int, **sizes: Any) -> Sizes:
    """One KV head of qwen36-27b: six query heads of 256."""
    return replace(large(io, rows, **sizes), heads=6, kv_heads=1)


def large(io: Io, rows: int, **sizes: Any) -> Sizes:
    """Qwen36-27b: four KV heads of six query heads of 256."""
    return Sizes.of(_LARGE, io=io, rows=rows, **{"max_pages": 3, "pages": 4, **sizes})


def draw(rng: np.random.Generator, shape: Sequence[int], likeness: float = 0.0) -> NDArray[np.float64]:
    """Normal numbers; all vectors along the last axis share a direction to the degree `likeness` (1: are equal)."""
    common = rng.standard_normal(shape[-1])
    return likeness * common + (1 - likeness**2) ** 0.5 * rng.standard_normal(shape)


def attention_tensors(
    kernel: Kernel,
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    context: int,
    count: int,
    start: int = 0,
    stored: int | None = None,
    likeness: float = 0.0,
    sharpness: float = 1.0,
) -> Arrays:
    """Inputs of TREE_ATTN_PARTIAL or ATTN_PREFILL, queries of 8 bits whatever the activations are.

    Pages hold `stored` tokens (None: `context`) through a shuffled table, the tail start + count rows that each see
    their own row; all other bytes of both, and query rows from `count` on, are NaN.

    Args:
        sharpness: factor of the queries: how unequal the weights are.
    """
    tensors = empty_tensors(kernel, sizes)
    tensors["control"][:3] = context, count, start
    tensors["kv_scale"][:] = SCALES
    tensors["q"][...] = np.nan
    queries = sharpness * draw(rng, tensors["q"][:count].shape, likeness)
    tensors["q"][:count] = queries.astype(ml_dtypes.bfloat16)
    tensors["page_table"][:] = rng.permutation(sizes.pages)[: sizes.max_pages]
    for name in ("k_pages", "v_pages", "tail_k", "tail_v"):
        if name in tensors:
            tensors[name].view(np.uint8)[...] = NAN
    stored = context if stored is None else stored
    for part, scale in zip("kv", SCALES, strict=True):
        codes = to_e4m3(draw(rng, (stored, sizes.kv_heads, sizes.head_dim), likeness), scale)
        for token, row in enumerate(codes):
            tensors[f"{part}_pages"][tensors["page_table"][token // sizes.page], token % sizes.page] = row
        if f"tail_{part}" in tensors:
            shape = (start + count, sizes.kv_heads, sizes.head_dim)
            tensors[f"tail_{part}"][: start + count] = to_e4m3(draw(rng, shape, likeness), scale)
    if "ancestors" in tensors:
        tensors["ancestors"][...] = ancestors(range(-1, sizes.tail - 1), sizes.words, alone=True)
    return tensors


def ancestors(parents: Sequence[int], words: int, *, alone: bool = False) -> NDArray[np.int32]:
    """Masks of a tree's nodes, self included; `alone`: nodes see only themselves."""
    family: list[int] = []
    for node, parent in enumerate(parents):
        family.append((family[parent] if parent >= 0 and not alone else 0) | 1 << node)
    parts = [[mask >> 32 * word & 0xFFFFFFFF for word in range(words)] for mask in family]
    return np.array(parts, np.uint32).view(np.int32)


def random_tree(rng: np.random.Generator, size: int) -> list[int]:
    """Parents: mostly a few levels of several branches."""
    return [-1, *(int(rng.integers(max(0, node - 6), node)) for node in range(1, size))]


def tree_attention(sizes: Sizes, tensors: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
    """(what both kernels make, what the references make) of the rows that count; what is not written is NaN."""
    tensors["part_o"][...] = np.nan
    tensors["part_ml"][...] = np.nan
    made, expected = run_both(TREE_ATTN_PARTIAL, sizes, tensors)
    results = []
    for parts in (made, expected):
        joined = empty_tensors(TREE_ATTN_REDUCE, sizes)
        joined["part_o"][...], joined["part_ml"][...] = parts["part_o"], parts["part_ml"]
        results.append(joined)
    reduced, _ = run_both(TREE_ATTN_REDUCE, sizes, results[0])
    TREE_ATTN_REDUCE.reference(sizes, results[1])
    count = int(tensors["control"][1])
    return reduced["context"][:count], results[1]["context"][:count]


def assert_attention(made: NDArray[Any], expected: NDArray[Any], error: float = 1e-3) -> None:
    """Differences are at most `error`, and one step of the activations' type."""
    step = {"float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}[made.dtype.name]
    made, expected = made.astype(np.float64), expected.astype(np.float64)
    excess = np.abs(made - expected) - step * np.abs(expected)
    assert not np.isnan(excess).any()
    assert excess.max(initial=0.0) <= error
