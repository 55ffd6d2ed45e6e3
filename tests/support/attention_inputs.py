"""Sizes of the attention kernels, both tree kernels in a row, and how far results may be from each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from kernel_parity import Arrays, run_both
from numpy.typing import NDArray

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.kernels.attention import TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.inputs import NAN, SCALES, ancestors, attention_tensors, draw, random_tree
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.spec import empty_tensors

__all__ = [
    "NAN",
    "SCALES",
    "ancestors",
    "assert_attention",
    "attention_tensors",
    "draw",
    "large",
    "random_tree",
    "tiny",
    "tree_attention",
    "wide",
]

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
