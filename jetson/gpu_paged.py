"""Timed attention: over pools of one layer's pages, cut among page tables that have no page in common.

Bytes: keys and values of the context, queries and results; the partial sums between the two kernels of tree attention
do not count. Operations: 4 · head_dim per query head, row and token that it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgellm.engine.device.base import Buffer, Launch
from edgellm.engine.device.cuda import CudaDevice
from edgellm.jetson.gpu_device import Arena, Needed
from edgellm.jetson.gpu_scale import TARGET, Scale, Workload, nbytes
from edgellm.kernels.attention import ATTN_PREFILL, TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.inputs import NAN, SCALES, Arrays, ancestors, random_tree
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, Kernel, empty_tensors, numpy_dtype


def tree_attention(scale: Scale, rows: int, context: int, splits: int, chosen: bool, beyond: int) -> Workload:
    sizes = scale.sizes(rows, splits)
    row = 2 * sizes.kv_heads * sizes.head_dim  # keys and values of a token
    queries = 2 * sizes.rows * sizes.heads * sizes.head_dim
    pools, tables = _paging(sizes, context, max(len(scale.spec.full_layers), -(-beyond // (context * row))), beyond)

    def build(device: CudaDevice, arena: Arena) -> list[Launch]:
        tensors = _queries(TREE_ATTN_PARTIAL, sizes, context, rows)
        tensors["ancestors"][...] = ancestors(random_tree(np.random.default_rng(0), rows), sizes.words)
        for name in ("tail_k", "tail_v"):
            tensors[name].view(np.uint8)[...] = _codes(tensors[name].shape)
        shared = {**arena.inputs(tensors), **arena.outputs(TREE_ATTN_PARTIAL, sizes)}
        result = arena.outputs(TREE_ATTN_REDUCE, sizes)
        launches = []
        for place in _places(device, arena, sizes, pools, tables):
            launches.append(Launch(TREE_ATTN_PARTIAL, sizes, {**shared, **place}))
            launches.append(Launch(TREE_ATTN_REDUCE, sizes, {**shared, **result}))
        return launches

    needs: tuple[Needed, ...] = ((TREE_ATTN_PARTIAL, sizes), (TREE_ATTN_REDUCE, sizes))
    return Workload(
        "tree_attn_partial + reduce",
        f"{rows} rows at {context}, {splits} splits{'' if chosen else ' (for comparison)'}",
        needs,
        len(tables),
        len(tables) * ((context + rows) * row + 2 * queries),
        len(tables) * 4 * rows * sizes.heads * sizes.head_dim * context,
        "keys and values of the context and the draft rows + q + context rows",
        TARGET if chosen else None,
        _paged_bytes(sizes, pools, tables) + 2 * nbytes(TREE_ATTN_PARTIAL, replace(sizes, pages=1)),
        build,
    )


def attention_prefill(scale: Scale, context: int, beyond: int) -> Workload:
    rows = scale.chunk
    sizes = scale.sizes(rows)
    row = 2 * sizes.kv_heads * sizes.head_dim
    queries = 2 * rows * sizes.heads * sizes.head_dim
    seen = context + rows
    pools, tables = _paging(sizes, seen, max(2, -(-beyond // (seen * row + 2 * queries))), beyond)

    def build(device: CudaDevice, arena: Arena) -> list[Launch]:
        shared = arena.inputs(_queries(ATTN_PREFILL, sizes, context, rows))
        places = _places(device, arena, sizes, pools, tables)
        return [
            Launch(ATTN_PREFILL, sizes, {**shared, **place, **arena.outputs(ATTN_PREFILL, sizes)}) for place in places
        ]

    return Workload(
        "attn_prefill",
        f"{rows} rows at {context}",
        ((ATTN_PREFILL, sizes),),
        len(tables),
        len(tables) * (seen * row + 2 * queries),
        len(tables) * 4 * sizes.heads * sizes.head_dim * (rows * context + rows * (rows + 1) // 2),
        "keys and values of what is seen + q + context rows",
        None,
        _paged_bytes(sizes, pools, tables) + (len(tables) + 2) * 2 * (queries + 1024),
        build,
    )


def _paging(sizes: Sizes, tokens: int, wanted: int, beyond: int) -> tuple[int, list[tuple[int, range]]]:
    """(pools, for each table its pool and its pages), at least `wanted` tables that come back after `beyond` bytes."""
    pages = -(-tokens // sizes.page)
    each = max(1, sizes.pages // pages)  # tables of a pool
    pool_bytes = 2 * sizes.pages * sizes.page * sizes.kv_heads * sizes.head_dim
    pools = min(-(-wanted // each), max(2, -(-beyond // pool_bytes) + 1))
    starts = [(pool, range(at * pages, (at + 1) * pages)) for at in range(each) for pool in range(pools)]
    return pools, [starts[at % len(starts)] for at in range(wanted)]


def _paged_bytes(sizes: Sizes, pools: int, tables: Sequence[object]) -> int:
    pool = 2 * sizes.pages * sizes.page * sizes.kv_heads * sizes.head_dim
    return pools * (pool + 2048) + len(tables) * (4 * sizes.max_pages + 2048) + (1 << 20)


def _places(
    device: CudaDevice, arena: Arena, sizes: Sizes, pools: int, tables: Sequence[tuple[int, range]]
) -> list[Mapping[str, Buffer]]:
    shape = (sizes.pages, sizes.page, sizes.kv_heads, sizes.head_dim)
    codes = _codes(shape).view(numpy_dtype("e4m3", sizes))
    held = [arena.inputs({"k_pages": codes, "v_pages": codes}) for _ in range(pools)]
    places: list[Mapping[str, Buffer]] = []
    rng = np.random.default_rng(1)
    for pool, pages in tables:
        table = np.zeros(sizes.max_pages, np.int32)
        table[: len(pages)] = rng.permutation(pages)
        places.append({**held[pool], **arena.inputs({"page_table": table})})
    return places


def _codes(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """E4M3 codes of random numbers, none of them NaN."""
    codes = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
    codes[(codes & NAN) == NAN] = 0
    return codes


def _queries(kernel: Kernel, sizes: Sizes, context: int, rows: int) -> Arrays:
    """Everything but pages, tables and outputs."""
    small = empty_tensors(kernel, replace(sizes, pages=1))
    left_out = {"k_pages", "v_pages", "page_table", *(param.name for param in kernel.params if param.role == "out")}
    tensors = {name: values for name, values in small.items() if name not in left_out}
    tensors["q"][...] = np.random.default_rng(3).standard_normal(tensors["q"].shape)
    tensors["kv_scale"][:] = SCALES
    tensors["control"][[CONTEXT, COUNT]] = context, rows
    return tensors
