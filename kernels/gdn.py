"""Kernels of the Gated DeltaNet layers.

Decoding: gdn_prep and gdn_tree_verify commit what the step before accepted, then run a tree of nodes and leave a
capsule: `capsule` nodes of keys, updates and log decay totals, and the raw rows of the convolution. Where no step
follows, gdn_commit commits a capsule. Prefill: gdn_prep_chain, then gdn_prefill, which moves both states on.

What must stay true: the capsule that gdn_tree_verify reads is not the one it writes (two buffers, taken in turn), since
its blocks read all of it; a capsule is committed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edgellm.kernels.reference import gdn as reference
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTROL, Dtype, Kernel, Param, Role, Shape

MAX_NODES: Final = 16  # of a tree
_TILE_COLUMNS: Final = 32  # of a head's state that a block of gdn_tree_verify and gdn_commit has
_CHAIN_ROWS: Final = 64  # of a block of gdn_prep_chain


def _param(name: str, dtype: Dtype, role: Role, *shape: str) -> Param:
    """Sizes by the names of their attributes in `Sizes`."""
    return Param(name, dtype, role, lambda s: tuple(getattr(s, size) for size in shape))


def _history(s: Sizes) -> Shape:
    return s.conv_kernel - 1, s.conv_channels


def _state(s: Sizes) -> Shape:
    return s.value_heads, s.key_dim, s.value_dim


_CONTROL_PARAM: Final = Param("control", "i32", "in", lambda s: (CONTROL,))
_ACCEPTED: Final = Param("accepted", "i32", "in", lambda s: (2,))  # bit mask of the accepted nodes, the last of them
_RAW: Final = (
    _param("qkv", "io", "in", "rows", "conv_channels"),
    _param("a", "io", "in", "rows", "value_heads"),
    _param("b", "io", "in", "rows", "value_heads"),
    _param("taps", "f32", "in", "conv_kernel", "conv_channels"),
    _param("decay", "f32", "in", "value_heads"),
    _param("dt_bias", "f32", "in", "value_heads"),
)


def _operands(role: Role) -> tuple[Param, ...]:
    return (
        _param("q", "io", role, "rows", "key_heads", "key_dim"),
        _param("k", "io", role, "rows", "key_heads", "key_dim"),
        _param("v", "io", role, "rows", "value_heads", "value_dim"),
        _param("log_decay", "f32", role, "rows", "value_heads"),
        _param("beta", "f32", role, "rows", "value_heads"),
    )


def _capsule(prefix: str, role: Role) -> tuple[Param, ...]:
    return (
        _param(f"{prefix}_k", "io", role, "capsule", "key_heads", "key_dim"),
        _param(f"{prefix}_u", "f32", role, "capsule", "value_heads", "value_dim"),
        _param(f"{prefix}_g", "f32", role, "capsule", "value_heads"),
    )


def _heads(s: Sizes) -> dict[str, int]:
    return {
        "KEY_HEADS": s.key_heads,
        "VALUE_HEADS": s.value_heads,
        "KEY_DIM": s.key_dim,
        "VALUE_DIM": s.value_dim,
        "CONV_KERNEL": s.conv_kernel,
        "CHANNELS": s.conv_channels,
    }


def _refuses(s: Sizes) -> str | None:
    if s.value_heads % s.key_heads:
        return f"{s.value_heads} value heads are no multiple of {s.key_heads} key heads"
    if s.key_dim not in (32, 64, 128) or s.value_dim not in (32, 64, 128):
        return f"heads of {s.key_dim} x {s.value_dim}; it handles 32, 64 and 128"
    if not 2 <= s.conv_kernel <= 8:
        return f"a convolution of {s.conv_kernel} taps; it handles 2 to 8"
    return None


def _refuses_capsule(s: Sizes) -> str | None:
    if not 1 <= s.capsule <= 32:
        return f"a capsule of {s.capsule} nodes; the accepted ones are bits of one word"
    return _refuses(s)


def _refuses_tree(s: Sizes) -> str | None:
    if s.rows > min(MAX_NODES, s.capsule) or s.tail != s.rows:
        return (
            f"trees of {s.rows} nodes in a tail of {s.tail} and a capsule of {s.capsule}; it handles up to {MAX_NODES} "
            "that are the whole tail and fit in the capsule"
        )
    return _refuses_capsule(s)


def _prep_threads(s: Sizes) -> int:
    """Eight channels each: of all rows of a head if they are few."""
    return min(256, max(32, s.rows * max(s.key_dim, s.value_dim) // 8 + 31 & ~31))


def _tile_rows(s: Sizes) -> int:
    """Rows of the state that a thread of gdn_tree_verify and gdn_commit has."""
    return 8 if s.key_dim > 32 else 4


def _tile_threads(s: Sizes) -> int:
    return 8 * s.key_dim // _tile_rows(s)


def _tiles(s: Sizes) -> int:
    return s.value_heads * s.value_dim // _TILE_COLUMNS


def _prefill_warps(s: Sizes) -> int:
    """16 columns of a head each."""
    return min(4, s.value_dim // 16)


def _prep_defines(s: Sizes) -> Mapping[str, int]:
    return {**_heads(s), "THREADS": _prep_threads(s)}


def _tile_defines(s: Sizes) -> Mapping[str, int]:
    return {**_heads(s), "TILE_ROWS": _tile_rows(s), "CAPSULE": s.capsule}


GDN_PREP = Kernel(
    name="gdn_prep",
    source="gdn_prep.cu",
    params=(
        *_RAW,
        _param("parents", "i32", "in", "rows"),
        _ACCEPTED,
        _CONTROL_PARAM,
        Param("conv_state", "io", "inout", _history),
        _param("cap_c", "io", "inout", "capsule", "conv_channels"),
        *_operands("out"),
    ),
    grid=lambda s: (2 * s.key_heads + s.value_heads, 1, 1),
    threads=_prep_threads,
    defines=_prep_defines,
    reference=reference.gdn_prep,
    refuses=_refuses_tree,
    plugin=True,
)

GDN_PREP_CHAIN = Kernel(
    name="gdn_prep_chain",
    source="gdn_prep_chain.cu",
    params=(*_RAW, Param("conv_state", "io", "in", _history), _CONTROL_PARAM, *_operands("out")),
    grid=lambda s: (2 * s.key_heads + s.value_heads, -(-s.rows // _CHAIN_ROWS), 1),
    threads=_prep_threads,
    defines=lambda s: {**_prep_defines(s), "BLOCK_ROWS": _CHAIN_ROWS},
    reference=reference.gdn_prep_chain,
    refuses=_refuses,
    plugin=True,
)

GDN_TREE_VERIFY = Kernel(
    name="gdn_tree_verify",
    source="gdn_tree_verify.cu",
    params=(
        *_operands("in"),
        _param("ancestors", "i32", "in", "tail", "words"),
        _ACCEPTED,
        _CONTROL_PARAM,
        *_capsule("cap", "in"),
        Param("state", "f32", "inout", _state),
        _param("y", "io", "out", "rows", "value_heads", "value_dim"),
        *_capsule("new_cap", "out"),
    ),
    grid=lambda s: (_tiles(s), 1, 1),
    threads=_tile_threads,
    defines=lambda s: {**_tile_defines(s), "ROWS": s.rows},
    reference=reference.gdn_tree_verify,
    refuses=_refuses_tree,
    plugin=True,
)


def _layered(param: Param) -> Param:
    return Param(param.name, param.dtype, param.role, lambda s: (s.layers, *param.shape(s)))


GDN_COMMIT = Kernel(
    name="gdn_commit",
    source="gdn_commit.cu",
    params=(
        _ACCEPTED,
        *map(_layered, _capsule("cap", "in")),
        _layered(_param("cap_c", "io", "in", "capsule", "conv_channels")),
        _layered(Param("state", "f32", "inout", _state)),
        _layered(Param("conv_state", "io", "inout", _history)),
    ),
    grid=lambda s: (_tiles(s), s.layers, 1),
    threads=_tile_threads,
    defines=_tile_defines,
    reference=reference.gdn_commit,
    refuses=_refuses_capsule,
    plugin=False,
)

GDN_PREFILL = Kernel(
    name="gdn_prefill",
    source="gdn_prefill.cu",
    params=(
        *_operands("in"),
        _param("qkv", "io", "in", "rows", "conv_channels"),
        _CONTROL_PARAM,
        Param("state", "f32", "inout", _state),
        Param("conv_state", "io", "inout", _history),
        _param("y", "io", "out", "rows", "value_heads", "value_dim"),
    ),
    grid=lambda s: (s.value_heads * s.value_dim // (16 * _prefill_warps(s)), 1, 1),
    threads=lambda s: 32 * _prefill_warps(s),
    defines=lambda s: {**_heads(s), "WARPS": _prefill_warps(s)},
    reference=reference.gdn_prefill,
    refuses=_refuses,
    plugin=True,
)

KERNELS: Final = (GDN_PREP, GDN_PREP_CHAIN, GDN_TREE_VERIFY, GDN_COMMIT, GDN_PREFILL)
