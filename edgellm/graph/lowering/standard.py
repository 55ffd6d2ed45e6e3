"""Lowering to standard ONNX operators (opset 24): the canonical form of the graph.

One graph serves chains and trees, states are read-only, and the DeltaNet block of a layer is a call of the model-local
function `GatedDeltaTree`, so that a target can replace it as one unit. Weights are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike

from edgellm.checkpoint.spec import AttentionSpec, LinearSpec
from edgellm.graph.builder import LOCAL, Dim, GraphBuilder
from edgellm.graph.lowering.base import DeltaWeights, Ops
from edgellm.graph.rope import RopeTables
from edgellm.graph.source import F32, Part, Source
from edgellm.graph.tree import (
    Capsule,
    TreeInputs,
    declare_capsule,
    declare_state,
    declare_tree,
    tap_rows,
    tree_block,
    tree_masks,
)

FUNCTION: Final = "GatedDeltaTree"


@dataclass(frozen=True, slots=True)
class StandardOps:
    """`Ops` in standard operators; a projection is one product with a float32 matrix [in, out]."""

    source: Source

    def embed(self, g: GraphBuilder, ids: str) -> str:
        return g.op("Gather", [self._rows(g, Part("embed_tokens.weight", self.source.spec.vocab)), ids])

    def project(
        self, g: GraphBuilder, x: str, name: str, parts: Sequence[Part], outputs: Sequence[str] = ()
    ) -> list[str]:
        def transposed() -> F32:
            return np.ascontiguousarray(np.concatenate([piece for p in parts for piece in p.pieces(self.source)]).T)

        weight = g.weight(f"{name}.transposed", transposed)
        if len(parts) == 1:
            return [g.op("MatMul", [x, weight], output=outputs[0] if outputs else None)]
        return g.split(g.op("MatMul", [x, weight]), [part.rows for part in parts], outputs=outputs)

    def logits(self, g: GraphBuilder, rows: str, part: Part, output: str | None = None) -> str:
        return g.op("Gemm", [rows, self._rows(g, part)], output=output, transB=1)

    def norm(self, g: GraphBuilder, x: str, scale: str, *, epsilon: float | None = None) -> str:
        return g.op("RMSNormalization", [x, scale], axis=-1, epsilon=epsilon or self.source.spec.rms_eps)

    def add_norm(self, g: GraphBuilder, x: str, y: str, scale: str, output: str | None = None) -> tuple[str, str]:
        total = g.op("Add", [x, y])
        normed = g.op("RMSNormalization", [total, scale], output=output, axis=-1, epsilon=self.source.spec.rms_eps)
        return total, normed

    def silu(self, g: GraphBuilder, x: str) -> str:
        return g.op("Mul", [x, g.op("Sigmoid", [x])])

    def gates(self, g: GraphBuilder, a: str, b: str, scale: str, bias: str) -> tuple[str, str]:
        return g.op("Mul", [g.op("Softplus", [g.op("Add", [a, bias])]), scale]), g.op("Sigmoid", [b])

    def _rows(self, g: GraphBuilder, part: Part) -> str:
        stem = part.tensor.removesuffix(".weight") + ("" if part.index is None else ".some")
        shape = [part.rows, self.source.spec.hidden]
        return g.stream(f"{stem}.rows", np.float32, shape, lambda: part.pieces(self.source))


@dataclass(frozen=True, slots=True)
class FunctionTree:
    """`DeltaForm` with the inputs and outputs of `tree.InlineTree`; the block is a call of `FUNCTION`.

    Function inputs: qkv, a, b, conv state, recurrent state, conv_idx, tree_mask, the taps, decay, dt_bias; outputs: y
    and the capsule (u, k, total).
    """

    inputs: TreeInputs

    @classmethod
    def declare(cls, g: GraphBuilder, spec: LinearSpec) -> Self:
        """Declare the inputs that all layers share."""
        return cls(declare_tree(g, spec))

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        return g.output(f"cap_c_{layer}", np.float32, [1, "S", spec.conv_channels])

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        spec = ops.source.spec.linear
        taps = tuple(f"tap_{j}" for j in range(spec.conv_kernel))
        inner = DeltaWeights(taps, "decay", "dt_bias")
        formal = ["qkv", "a", "b", "conv", "state", "conv_idx", "tree_mask", *taps, inner.decay, inner.bias]
        capsule = Capsule("u", "k", "total")

        def body(f: GraphBuilder) -> None:
            rows = tap_rows(f, f.op("Concat", ["conv", "qkv"], axis=1), "conv_idx", spec.conv_kernel)
            y = tree_block(f, ops, tree_masks(f, "tree_mask"), rows, "a", "b", "state", inner, capsule)
            f.op("Identity", [y], output="y")

        g.function(FUNCTION, formal, ["y", *capsule], body)
        actual = [qkv, a, b, *declare_state(g, spec, layer, 1), *self.inputs]
        actual += [*weights.taps, weights.decay, weights.bias]
        outputs = [f"layers.{layer}.delta", *declare_capsule(g, spec, layer)]
        return g.ops(FUNCTION, actual, outputs, domain=LOCAL)[0]


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    """`AttentionForm` over past rows and new rows with a float mask; keeping the cache is up to the caller.

    Inputs: positions i64 [1, S], attn_bias [1, 1, S, P + S]; per layer past keys and values [1, KV, P, head_dim]
    (``k_3``). Outputs: new rows [1, KV, S, head_dim] (``k_new_3``). All of them, and the activations, are of `dtype`;
    RoPE is computed in float32.
    """

    positions: str
    bias: str
    rope: RopeTables
    dtype: np.dtype[Any]

    @classmethod
    def declare(cls, g: GraphBuilder, rope: RopeTables, dtype: DTypeLike = np.float32) -> Self:
        """Declare the inputs that all layers share."""
        positions = g.input("positions", np.int64, [1, "S"])
        return cls(positions, g.input("attn_bias", dtype, [1, 1, "S", "T"]), rope, np.dtype(dtype))

    def attend(
        self, g: GraphBuilder, ops: Ops, cache: tuple[str, str], qkv: tuple[str, str, str], scales: tuple[str, str]
    ) -> str:
        spec = ops.source.spec.attention
        past: list[Dim] = [1, spec.kv_heads, "P", spec.head_dim]
        new: list[Dim] = [1, spec.kv_heads, "S", spec.head_dim]
        names = [g.output(new_rows(name), self.dtype, new) for name in cache]
        q = self._rotated(g, ops, qkv[0], scales[0], spec, spec.heads)
        k = self._rotated(g, ops, qkv[1], scales[1], spec, spec.kv_heads, names[0])
        v = g.reshape(qkv[2], [0, 0, spec.kv_heads, spec.head_dim])
        v = g.op("Transpose", [v], perm=[0, 2, 1, 3], output=names[1])
        rows = [
            g.op("Concat", [g.input(name, self.dtype, past), row], axis=2)
            for name, row in zip(cache, (k, v), strict=True)
        ]
        context = g.op("Transpose", [g.op("Attention", [q, *rows, self.bias])], perm=[0, 2, 1, 3])
        return g.reshape(context, [0, 0, spec.heads * spec.head_dim])

    def _rotated(
        self, g: GraphBuilder, ops: Ops, x: str, scale: str, spec: AttentionSpec, heads: int, output: str | None = None
    ) -> str:
        normed = ops.norm(g, g.reshape(x, [0, 0, heads, spec.head_dim]), scale)
        by_head = g.op("Transpose", [normed], perm=[0, 2, 1, 3])
        inputs, width = [*self.rope, self.positions], spec.rotary_dim
        if self.dtype == np.float32:
            return g.op("RotaryEmbedding", [by_head, *inputs], output=output, rotary_embedding_dim=width)
        turned = g.op("RotaryEmbedding", [g.cast(by_head, np.float32), *inputs], rotary_embedding_dim=width)
        return g.cast(turned, self.dtype, output)


def new_rows(name: str) -> str:
    """Output name of the rows to append to a cache: ``k_3`` becomes ``k_new_3``, ``mtp_k`` becomes ``mtp_k_new``."""
    stem, _, layer = name.rpartition("_")
    return f"{stem}_new_{layer}" if layer.isdigit() else f"{name}_new"
