"""Attention over an FP8 cache of pages and the draft rows behind it, and the kernels that fill the cache.

K and V are stored as E4M3 codes of x / scale, token by token: [page, token of the page, KV head, head_dim]. The rows of
a step go to the tail first (`ATTN_PREP`); a prompt's chunk is then written to the pages (`KV_WRITE`) and attends to
them (`ATTN_PREFILL`); a tree of draft rows is attended to where it is (`TREE_ATTN_*`), and `KV_COMMIT` moves what was
accepted. What must stay true: nothing of a page past the context, or of a tail row that is no node, reaches a result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from edgellm.kernels.reference import attention as reference
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTROL, Kernel, Param, Role, Shape

_COPY_THREADS: Final = 128
_HEAD_THREADS: Final = 128  # four heads
_QUERY_ROWS: Final = 16  # of a warp
_WARPS: Final = 8  # of a block, at most: 255 registers each
_TILE: Final = 32  # tokens


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def _query_blocks(s: Sizes) -> int:
    """Blocks that the query rows of one KV head are divided among."""
    return _ceil(s.rows * s.group, _QUERY_ROWS * _WARPS)


def _warps(s: Sizes) -> int:
    return _ceil(_ceil(s.rows * s.group, _QUERY_ROWS), _query_blocks(s))


def _token_bytes(s: Sizes) -> int:
    return s.kv_heads * s.head_dim


def _copy_blocks(s: Sizes, tokens: int) -> int:
    """Blocks of a kernel that copies tokens, 16 bytes per thread."""
    return _ceil(tokens * _token_bytes(s) // 16, _COPY_THREADS)


def _tail(s: Sizes) -> Shape:
    return (s.tail, s.kv_heads, s.head_dim)


def _pages(s: Sizes) -> Shape:
    return (s.pages, s.page, s.kv_heads, s.head_dim)


def _layered(shape: Shape, s: Sizes) -> Shape:
    return (s.layers, *shape)


def _parts(role: Role) -> tuple[Param, Param]:
    """By split: sums of weight * value; highest score in log2 units and sum of weights."""
    return (
        Param("part_o", "f32", role, lambda s: (s.splits, s.kv_heads, s.rows * s.group, s.head_dim)),
        Param("part_ml", "f32", role, lambda s: (s.splits, s.kv_heads, s.rows * s.group, 2)),
    )


def _attention(s: Sizes) -> Mapping[str, int | float]:
    return {
        "HEADS": s.heads,
        "KV_HEADS": s.kv_heads,
        "HEAD_DIM": s.head_dim,
        "PAGE": s.page,
        "WARPS": _warps(s),
        "SCORE_SCALE": math.log2(math.e) / math.sqrt(s.head_dim),
    }


def _heads(s: Sizes) -> Mapping[str, int | float]:
    return {"HEADS": s.heads, "KV_HEADS": s.kv_heads, "HEAD_DIM": s.head_dim, "THREADS": _HEAD_THREADS}


def _pages_macros(s: Sizes) -> Mapping[str, int | float]:
    return {"PAGE": s.page, "TOKEN_STRIDE": _token_bytes(s), "THREADS": _COPY_THREADS}


def _copies(s: Sizes) -> Mapping[str, int | float]:
    return {**_pages_macros(s), "TAIL": s.tail}


def _refuses_heads(s: Sizes) -> str | None:
    if s.head_dim not in (64, 128, 256):
        return f"head_dim must be 64, 128 or 256, not {s.head_dim}"
    if s.heads % s.kv_heads:
        return f"{s.heads} query heads cannot share {s.kv_heads} KV heads evenly"
    return None


def _refuses_tiles(s: Sizes) -> str | None:
    if s.page % _TILE:
        return f"a page of {s.page} tokens is not made of tiles of {_TILE}"
    return _refuses_heads(s)


def _refuses_tail(s: Sizes) -> str | None:
    return f"{s.rows} rows do not fit into a tail of {s.tail}" if s.rows > s.tail else None


def _refuses_prep(s: Sizes) -> str | None:
    lane = s.head_dim // 32
    if s.rotary_dim % (2 * lane) or not 0 < s.rotary_dim <= s.head_dim:
        return f"rotary_dim {s.rotary_dim} must be a multiple of {2 * lane}, up to head_dim {s.head_dim}"
    return _refuses_heads(s) or _refuses_tail(s)


def _refuses_copies(s: Sizes) -> str | None:
    return f"a token of {_token_bytes(s)} bytes is not made of 16-byte parts" if _token_bytes(s) % 16 else None


_CONTROL: Final = Param("control", "i32", "in", lambda s: (CONTROL,))
_KV_SCALE: Final = Param("kv_scale", "f32", "in", lambda s: (2,))  # of keys, of values
_PAGE_TABLE: Final = Param("page_table", "i32", "in", lambda s: (s.max_pages,))
_QUERIES: Final = Param("q", "io", "in", lambda s: (s.rows, s.heads, s.head_dim))
_READ_PAGES: Final = (Param("k_pages", "e4m3", "in", _pages), Param("v_pages", "e4m3", "in", _pages))
_LAYERED_PAGES: Final = (
    Param("k_pages", "e4m3", "inout", lambda s: _layered(_pages(s), s)),
    Param("v_pages", "e4m3", "inout", lambda s: _layered(_pages(s), s)),
)
_RESULT: Final = Param("context", "io", "out", lambda s: (s.rows, s.heads * s.head_dim))

ATTN_PREP: Final = Kernel(
    name="attn_prep",
    source="attn_prep.cu",
    params=(
        Param("q", "io", "in", lambda s: (s.rows, s.heads * s.head_dim)),
        Param("k", "io", "in", lambda s: (s.rows, s.kv_heads * s.head_dim)),
        Param("v", "io", "in", lambda s: (s.rows, s.kv_heads * s.head_dim)),
        Param("q_norm", "f32", "in", lambda s: (s.head_dim,)),  # 1 + w
        Param("k_norm", "f32", "in", lambda s: (s.head_dim,)),
        Param("cos", "f32", "in", lambda s: (s.positions, s.rotary_dim // 2)),
        Param("sin", "f32", "in", lambda s: (s.positions, s.rotary_dim // 2)),
        Param("position_ids", "i32", "in", lambda s: (s.rows,)),
        _KV_SCALE,
        _CONTROL,
        Param("tail_k", "e4m3", "inout", _tail),
        Param("tail_v", "e4m3", "inout", _tail),
        Param("q_rotated", "io", "out", lambda s: (s.rows, s.heads, s.head_dim)),
    ),
    grid=lambda s: (_ceil(s.heads + 2 * s.kv_heads, _HEAD_THREADS // 32), s.rows, 1),
    threads=lambda s: _HEAD_THREADS,
    defines=lambda s: {**_heads(s), "TAIL": s.tail, "ROTARY": s.rotary_dim, "RMS_EPS": float(s.rms_eps)},
    reference=reference.attn_prep,
    refuses=_refuses_prep,
    plugin=True,
)

TREE_ATTN_PARTIAL: Final = Kernel(
    name="tree_attn_partial",
    source="tree_attn_partial.cu",
    params=(
        _QUERIES,
        *_READ_PAGES,
        _PAGE_TABLE,
        _CONTROL,
        Param("tail_k", "e4m3", "in", _tail),
        Param("tail_v", "e4m3", "in", _tail),
        Param("ancestors", "i32", "in", lambda s: (s.tail, s.words)),
        _KV_SCALE,
        *_parts("out"),
    ),
    grid=lambda s: (s.kv_heads, s.splits, _query_blocks(s)),
    threads=lambda s: 32 * _warps(s),
    defines=lambda s: {**_attention(s), "ROWS": s.rows, "TAIL": s.tail, "WORDS": s.words, "SPLITS": s.splits},
    reference=reference.tree_attn_partial,
    refuses=_refuses_tiles,
    plugin=True,
)

TREE_ATTN_REDUCE: Final = Kernel(
    name="tree_attn_reduce",
    source="tree_attn_reduce.cu",
    params=(*_parts("in"), _RESULT),
    grid=lambda s: (_ceil(s.rows * s.heads, _HEAD_THREADS // 32), 1, 1),
    threads=lambda s: _HEAD_THREADS,
    defines=lambda s: {**_heads(s), "ROWS": s.rows, "SPLITS": s.splits},
    reference=reference.tree_attn_reduce,
    refuses=_refuses_heads,
    plugin=True,
)

ATTN_PREFILL: Final = Kernel(
    name="attn_prefill",
    source="attn_prefill.cu",
    params=(_QUERIES, *_READ_PAGES, _PAGE_TABLE, _CONTROL, _KV_SCALE, _RESULT),
    grid=lambda s: (_query_blocks(s), s.kv_heads, 1),
    threads=lambda s: 32 * _warps(s),
    defines=_attention,
    reference=reference.attn_prefill,
    refuses=_refuses_tiles,
    plugin=True,
)

KV_WRITE: Final = Kernel(
    name="kv_write",
    source="kv_write.cu",
    params=(
        Param("new_k", "e4m3", "in", _tail),
        Param("new_v", "e4m3", "in", _tail),
        _PAGE_TABLE,
        _CONTROL,
        Param("k_pages", "e4m3", "inout", _pages),
        Param("v_pages", "e4m3", "inout", _pages),
    ),
    grid=lambda s: (_copy_blocks(s, s.rows), 1, 1),
    threads=lambda s: _COPY_THREADS,
    defines=_copies,
    reference=reference.kv_write,
    refuses=lambda s: _refuses_copies(s) or _refuses_tail(s),
    plugin=True,
)

KV_COMMIT: Final = Kernel(
    name="kv_commit",
    source="kv_commit.cu",
    params=(
        Param("tail_k", "e4m3", "in", lambda s: _layered(_tail(s), s)),
        Param("tail_v", "e4m3", "in", lambda s: _layered(_tail(s), s)),
        _PAGE_TABLE,
        _CONTROL,
        Param("accepted", "i32", "in", lambda s: (2,)),  # bit mask over tail rows 0 ... 31, the last of them
        *_LAYERED_PAGES,
    ),
    grid=lambda s: (_copy_blocks(s, min(s.tail, 32)), s.layers, 1),
    threads=lambda s: _COPY_THREADS,
    defines=_copies,
    reference=reference.kv_commit,
    refuses=_refuses_copies,
    plugin=False,
)

KV_COPY_PAGE: Final = Kernel(
    name="kv_copy_page",
    source="kv_copy_page.cu",
    params=(Param("copy", "i32", "in", lambda s: (3,)), *_LAYERED_PAGES),
    grid=lambda s: (_copy_blocks(s, s.page), s.layers, 1),
    threads=lambda s: _COPY_THREADS,
    defines=_pages_macros,
    reference=reference.kv_copy_page,
    refuses=_refuses_copies,
    plugin=False,
)

KERNELS: Final = (
    ATTN_PREP,
    TREE_ATTN_PARTIAL,
    TREE_ATTN_REDUCE,
    ATTN_PREFILL,
    KV_WRITE,
    KV_COMMIT,
    KV_COPY_PAGE,
)
