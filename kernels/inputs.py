"""Random inputs of the kernels, part by part: for the tests, and for the checks on a GPU.

What must stay true: whatever a kernel may not read is NaN (rows from COUNT on, pages past the context, capsule nodes
that were not accepted), so that reading it shows; keys have a direction in common, which is where the delta rule is
hard; contexts begin and end inside of tiles and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgellm.kernels.reference.attention import to_e4m3
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import COUNT, Kernel, empty_tensors

Arrays = dict[str, NDArray[Any]]
NAN: Final = np.uint8(0x7F)  # as E4M3
SCALES: Final = np.array([0.05, 0.02], np.float32)  # of keys, of values
OPERANDS: Final = ("q", "k", "v", "log_decay", "beta")


def draw(rng: np.random.Generator, shape: Sequence[int], likeness: float = 0.0) -> NDArray[np.float64]:
    """Normal numbers; all vectors along the last axis share a direction to the degree `likeness` (1: are equal)."""
    common = rng.standard_normal(shape[-1])
    vectors: NDArray[np.float64] = likeness * common + (1 - likeness**2) ** 0.5 * rng.standard_normal(shape)
    return vectors


# -- trees


def random_tree(rng: np.random.Generator, size: int, reach: int = 6) -> list[int]:
    """Parents: mostly a few levels of several branches; a parent is at most `reach` nodes before its child."""
    return [-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, size))]


def family(parents: Sequence[int]) -> list[int]:
    """Bit masks of every node's ancestors, itself included."""
    masks: list[int] = []
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
    return masks


def ancestors(parents: Sequence[int], words: int, *, alone: bool = False) -> NDArray[np.int32]:
    """`family` as i32[nodes, words]; `alone`: nodes see only themselves."""
    masks = family([-1] * len(parents) if alone else parents)
    parts = [[mask >> 32 * word & 0xFFFFFFFF for word in range(words)] for mask in masks]
    return np.array(parts, np.uint32).reshape(len(masks), words).view(np.int32)


def accept(tensors: Arrays, parents: Sequence[int], last: int) -> None:
    """Accept the path to node `last` (-1: nothing) of the tree in the capsule; its other nodes become NaN."""
    mask = family(parents)[last] if last >= 0 else 0
    tensors["accepted"][:] = np.uint32(mask).view(np.int32), last
    for name in {"cap_k", "cap_u", "cap_g", "cap_c"} & tensors.keys():
        for node in range(len(tensors[name])):
            if not mask >> node & 1:
                tensors[name][node] = np.nan


# -- Gated DeltaNet


def fill_operands(tensors: Arrays, rng: np.random.Generator, count: int, *, alike: float = 1.0) -> None:
    """`OPERANDS` of `count` rows, whose keys have `alike` in common; NaN behind them."""
    for name in OPERANDS:
        shape = (count, *tensors[name].shape[1:])
        values = rng.standard_normal(shape)
        if name == "k":
            values += alike * rng.standard_normal((1, *shape[1:]))
        if name in ("q", "k"):
            values /= np.linalg.norm(values, axis=-1, keepdims=True)
        elif name == "log_decay":
            values = -np.exp(values - 2)
        elif name == "beta":
            values = 1 / (1 + np.exp(-values - 1))
        tensors[name][:count] = values
        tensors[name][count:] = np.nan
    tensors["control"][COUNT] = count


def fill_raw(tensors: Arrays, rng: np.random.Generator, count: int) -> None:
    """What the preparing kernels read; NaN in rows from `count` on."""
    for name in ("qkv", "a", "b", "taps", "dt_bias", "conv_state"):
        tensors[name][...] = rng.standard_normal(tensors[name].shape)
    tensors["decay"][...] = -np.exp(rng.standard_normal(tensors["decay"].shape))
    for name in ("qkv", "a", "b"):
        tensors[name][count:] = np.nan
    tensors["control"][COUNT] = count


def fill_capsule(tensors: Arrays, rng: np.random.Generator) -> None:
    """Keys of length 1, updates, and log decays that grow along the nodes."""
    k = rng.standard_normal(tensors["cap_k"].shape)
    tensors["cap_k"][...] = k / np.linalg.norm(k, axis=-1, keepdims=True)
    tensors["cap_u"][...] = rng.standard_normal(tensors["cap_u"].shape)
    tensors["cap_g"][...] = -np.cumsum(rng.exponential(0.3, tensors["cap_g"].shape), axis=-2)


def fill_tree(tensors: Arrays, rng: np.random.Generator, parents: Sequence[int], alike: float = 1.0) -> None:
    """Operands and masks of a tree's nodes; rows that mean nothing name everyone."""
    fill_operands(tensors, rng, len(parents), alike=alike)
    tensors["ancestors"][...] = -1
    tensors["ancestors"][: len(parents), 0] = family(parents)


# -- attention


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


def prep_tensors(kernel: Kernel, sizes: Sizes, rng: np.random.Generator, count: int, start: int = 0) -> Arrays:
    """Inputs of ATTN_PREP: rows from `count` on are NaN at no position; the tail is NaN."""
    tensors = empty_tensors(kernel, sizes)
    tensors["control"][:3] = 12345, count, start
    tensors["kv_scale"][:] = SCALES
    tensors["position_ids"][:] = -(2**31)
    tensors["position_ids"][:count] = rng.integers(0, sizes.positions, count)
    tensors["position_ids"][0] = sizes.positions - 1
    for name in ("q", "k", "v"):
        tensors[name][...] = np.nan
        tensors[name][:count] = 3 * draw(rng, tensors[name][:count].shape)
    for name in ("q_norm", "k_norm"):
        tensors[name][:] = 1 + 0.2 * draw(rng, tensors[name].shape)
    angles = rng.uniform(0, 2 * np.pi, tensors["cos"].shape)
    tensors["cos"][...], tensors["sin"][...] = np.cos(angles), np.sin(angles)
    tensors["tail_k"].view(np.uint8)[...] = tensors["tail_v"].view(np.uint8)[...] = NAN
    return tensors


def fill_bytes(tensors: Arrays, sizes: Sizes, rng: np.random.Generator) -> None:
    """Random tables, and random bytes (NaN among them) in all rows and pages."""
    for name, tensor in tensors.items():
        if tensor.dtype.name == "float8_e4m3fn":
            tensor.view(np.uint8)[...] = rng.integers(0, 256, tensor.shape, np.uint8)
        elif name == "page_table":
            tensor[:] = rng.permutation(sizes.pages)[: sizes.max_pages]
