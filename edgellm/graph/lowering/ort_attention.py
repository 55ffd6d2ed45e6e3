"""Attention over contiguous caches for ONNX Runtime's CPU kernels.

What must stay true: a cache can be bound to the same buffer as input and output, and only rows from the committed
length on are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from onnx import TensorProto

from edgellm.checkpoint.spec import AttentionSpec
from edgellm.graph.builder import MICROSOFT, Dim, GraphBuilder
from edgellm.graph.indices import MASKED
from edgellm.graph.lowering.base import Ops
from edgellm.graph.lowering.rounding import rounded_to_e4m3
from edgellm.graph.rope import RopeTables
from edgellm.graph.tree import MAX_TREE


@dataclass(frozen=True, slots=True)
class GroupedQuery:
    """`AttentionForm` that appends to a contiguous cache in place.

    Inputs: positions i64 [B, S], seqlens_k i32 [B] (committed + S - 1), total_seqlen i32 [] (committed + S), for a tree
    attn_bias f32 [1, 1, S, T]; per layer key and value cache f32 [B, KV, M, head_dim], also outputs ("_out").

    The kernel reads the cache once per query head. Few tokens of one sequence are therefore folded when the cache has
    room: the r query heads of a key head become r times as many tokens of one head, and a bias keeps each of them to
    the keys of its token. The kernel then also writes (r - 1) * S rows after the new ones, which mean nothing.
    """

    batch: Dim
    positions: str
    lengths: tuple[str, str]
    bias: str  # empty: causal
    rope: RopeTables
    folded: Folded | None
    kv_scales: Mapping[str, float] | None

    @classmethod
    def declare(
        cls,
        g: GraphBuilder,
        spec: AttentionSpec,
        batch: Dim,
        rope: RopeTables,
        *,
        tree: bool,
        cache: str | None,
        kv_scales: Mapping[str, float] | None,
    ) -> Self:
        """Declare the inputs that all layers share.

        Args:
            cache: name of one of the caches, if there are any.
            kv_scales: cache → scale: keys and values are rounded to E4M3 times their scale, as a device with an FP8
                cache sees them, and kept as float32; None: not rounded.
        """
        positions = g.input("positions", np.int64, [batch, "S"])
        lengths = g.input("seqlens_k", np.int32, [batch]), g.input("total_seqlen", np.int32, [])
        bias = g.input("attn_bias", np.float32, [batch, 1, "S", "T"]) if tree else ""
        ratio = spec.heads // spec.kv_heads
        folded = None if ratio == 1 or cache is None else Folded.declare(g, ratio, positions, lengths, bias, cache)
        return cls(batch, positions, lengths, bias, rope, folded, kv_scales)

    def attend(
        self, g: GraphBuilder, ops: Ops, cache: tuple[str, str], qkv: tuple[str, str, str], scales: tuple[str, str]
    ) -> str:
        spec = ops.source.spec.attention
        shape: list[Dim] = [self.batch, spec.kv_heads, "M", spec.head_dim]
        past = [g.input(name, np.float32, shape) for name in cache]
        outputs = [f"{cache[0]}.context", *(g.output(cache_output(name), np.float32, shape) for name in cache)]
        q = self._rotated(g, ops, qkv[0], scales[0], spec, spec.heads)
        k = self._rotated(g, ops, qkv[1], scales[1], spec, spec.kv_heads)
        v = qkv[2]
        if self.kv_scales is not None:
            k, v = (rounded_to_e4m3(g, x, self.kv_scales[name]) for x, name in zip((k, v), cache, strict=True))
        inputs = [q, k, v, *past]

        def plain(g: GraphBuilder, outputs: list[str] | int = 3) -> list[str]:
            extra = ["", "", "", self.bias] if self.bias else []
            return _attention(g, [*inputs, *self.lengths, *extra], outputs, spec.heads, spec.kv_heads)

        folded = self.folded
        if folded is None:
            return plain(g, outputs)[0]
        return g.choose(folded.fits, outputs, lambda g: folded.attend(g, spec, inputs), plain)[0]

    def _rotated(self, g: GraphBuilder, ops: Ops, x: str, scale: str, spec: AttentionSpec, heads: int) -> str:
        # Not the attention kernel's own RoPE: it takes a first prompt to be consecutive whatever `positions` says.
        normed = g.reshape(
            ops.norm(g, g.reshape(x, [0, 0, heads, spec.head_dim]), scale), [0, 0, heads * spec.head_dim]
        )
        return g.op(
            "RotaryEmbedding",
            [normed, self.positions, *self.rope],
            domain=MICROSOFT,
            num_heads=heads,
            rotary_embedding_dim=spec.rotary_dim,
        )


@dataclass(frozen=True, slots=True)
class Folded:
    """Shared values of the folded form of `GroupedQuery`: r * S tokens, token g * S + n for head g of token n."""

    ratio: int
    fits: str  # bool []: few tokens of one sequence, and room in the cache
    lengths: tuple[str, str]  # with the rows that mean nothing
    bias: str  # f32 [1, 1, r * S, committed + r * S]

    @classmethod
    def declare(
        cls, g: GraphBuilder, ratio: int, positions: str, lengths: tuple[str, str], bias: str, cache: str
    ) -> Self:
        """Add the values. Without a bias (a chain) a single token is folded, with one a tree of up to MAX_TREE."""
        one = g.const([1])
        size = g.op("Size", [positions])
        total = g.op("Cast", [lengths[1]], to=TensorProto.INT64)
        needed = g.op("Add", [total, g.op("Mul", [size, g.const(ratio - 1)])])
        room = g.op("Squeeze", [g.op("Shape", [cache], start=2, end=3)])
        few = g.op("LessOrEqual", [size, g.const(MAX_TREE if bias else 1)])
        fits = g.op("And", [few, g.op("LessOrEqual", [needed, room])])
        rest = g.op("Cast", [g.op("Mul", [size, g.const(ratio - 1)])], to=TensorProto.INT32)
        longer = g.op("Add", [lengths[0], rest]), g.op("Add", [lengths[1], rest])

        def fold(g: GraphBuilder) -> list[str]:
            rows = g.op("Reshape", [size, one])
            columns = g.op("Mul", [rows, g.const([ratio - 1])])
            visible = bias or g.op("Expand", [g.const(0, np.float32), _shape(g, rows, g.op("Reshape", [total, one]))])
            hidden = g.op("Expand", [g.const(MASKED, np.float32), _shape(g, rows, columns)])
            whole = g.op("Concat", [visible, hidden], axis=3)
            return [g.op("Tile", [whole, g.const([1, 1, ratio, 1])])]

        tiled = g.choose(fits, ["folded_bias"], fold, lambda g: [g.op("Identity", [g.const(0, np.float32)])])[0]
        return cls(ratio, fits, longer, tiled)

    def attend(self, g: GraphBuilder, spec: AttentionSpec, inputs: list[str]) -> list[str]:
        """(context, present keys, present values) for q, k, v and the past caches."""
        q, k, v, *past = inputs
        width = spec.kv_heads * spec.head_dim
        q = g.reshape(q, [0, 0, spec.kv_heads, self.ratio, spec.head_dim])
        q = g.reshape(g.op("Transpose", [q], perm=[0, 3, 1, 2, 4]), [1, -1, width])
        k, v = (g.op("Tile", [x, g.const([1, self.ratio, 1])]) for x in (k, v))
        extra = ["", "", "", self.bias]
        context, *present = _attention(g, [q, k, v, *past, *self.lengths, *extra], 3, spec.kv_heads, spec.kv_heads)
        context = g.reshape(context, [1, self.ratio, -1, spec.kv_heads, spec.head_dim])
        context = g.op("Transpose", [context], perm=[0, 2, 3, 1, 4])
        return [g.reshape(context, [1, -1, spec.heads * spec.head_dim]), *present]


def _attention(g: GraphBuilder, inputs: list[str], outputs: list[str] | int, heads: int, kv_heads: int) -> list[str]:
    return g.ops("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, num_heads=heads, kv_num_heads=kv_heads)


def _shape(g: GraphBuilder, rows: str, columns: str) -> str:
    return g.op("Concat", [g.const([1, 1]), rows, columns], axis=0)


def cache_output(name: str) -> str:
    """Output name of a cache input: ``k_3`` becomes ``k_out_3``, ``mtp_k`` becomes ``mtp_k_out``."""
    stem, _, layer = name.rpartition("_")
    return f"{stem}_out_{layer}" if layer.isdigit() else f"{name}_out"
