"""Lowering for ONNX Runtime's CPU kernels.

Owns the choice of `com.microsoft` operators and of stored weight forms. The kernels were chosen by measurement: its
LinearAttention (chains) is fast while GatedDeltaNet, CausalConvWithState and GatedRMSNorm are several times slower than
the same work in small operators. What must stay true: states and caches can be bound to the same buffer as input and
output (LinearAttention reads a state before it writes it; attention is in `ort_attention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.spec import LinearSpec
from edgellm.graph.builder import MICROSOFT, Dim, GraphBuilder
from edgellm.graph.encodings import BlockFormat, WeightFormat, encode
from edgellm.graph.lowering.base import DeltaWeights, Ops
from edgellm.graph.lowering.rounding import rounded_to_nvfp4
from edgellm.graph.source import F32, Part, Source
from edgellm.graph.tree import convolve, declare_state, unit_heads

_END: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OrtOps:
    """`Ops` for the CPU.

    Args:
        source: the checkpoint.
        weights: how its matrices are stored.
    """

    source: Source
    weights: WeightFormat

    def embed(self, g: GraphBuilder, ids: str) -> str:
        hidden, part = self.source.spec.hidden, Part("embed_tokens.weight", self.source.spec.vocab)
        form = self.weights.sensitive
        if form is None:
            return g.op("Gather", [self._rows(g, part), ids])
        # A tied 8-bit head shares these bytes.
        codes, scales = self._encoded(g, "embed_tokens", [part], form)
        width = form.blocks(hidden) * form.block
        table = g.view("embed_tokens.table", codes, [part.rows, width])
        x = g.op(
            "GatherBlockQuantized",
            [table, ids, scales],
            domain=MICROSOFT,
            bits=form.bits,
            block_size=form.block,
            gather_axis=0,
            quantize_axis=1,
        )
        return x if width == hidden else g.split(x, [hidden, width - hidden])[0]

    def project(
        self, g: GraphBuilder, x: str, name: str, parts: Sequence[Part], outputs: Sequence[str] = ()
    ) -> list[str]:
        names = iter(outputs or [""] * len(parts))
        results: list[str] = []
        for (form, scale), group in groupby(parts, lambda part: (self._form(part), self._input_scale(part))):
            fused = list(group)
            wanted = [next(names) for _ in fused]
            # The first group has the projection's name; a later one cannot be fused with it and is numbered.
            stem = f"{name}.{len(results)}" if results else name
            inputs = x if scale is None else rounded_to_nvfp4(g, x, scale)
            if len(fused) == 1:
                results.append(self._product(g, inputs, stem, fused, form, wanted[0] or None))
            else:
                product = self._product(g, inputs, stem, fused, form)
                results += g.split(product, [part.rows for part in fused], outputs=wanted)
        return results

    def logits(self, g: GraphBuilder, rows: str, part: Part, output: str | None = None) -> str:
        form, scale = self._form(part), self._input_scale(part)
        if scale is not None:
            rows = rounded_to_nvfp4(g, rows, scale)
        if form is None:
            return g.op("Gemm", [rows, self._rows(g, part)], output=output, transB=1)
        return self._product(g, rows, _stem(part), [part], form, output)

    def norm(self, g: GraphBuilder, x: str, scale: str, *, epsilon: float | None = None) -> str:
        return g.op("RMSNormalization", [x, scale], axis=-1, epsilon=epsilon or self.source.spec.rms_eps)

    def add_norm(self, g: GraphBuilder, x: str, y: str, scale: str, output: str | None = None) -> tuple[str, str]:
        names = [output or f"{y}_normed", "", "", f"{y}_residual"]
        kind, epsilon = "SkipSimplifiedLayerNormalization", self.source.spec.rms_eps
        normed, _, _, total = g.ops(kind, [x, y, scale], names, domain=MICROSOFT, epsilon=epsilon)
        return total, normed

    def silu(self, g: GraphBuilder, x: str) -> str:
        return g.op("QuickGelu", [x], domain=MICROSOFT, alpha=1.0)

    def gates(self, g: GraphBuilder, a: str, b: str, scale: str, bias: str) -> tuple[str, str]:
        log_decay, beta = g.ops("LinearAttentionGate", [a, bias, scale, b], 2, domain=MICROSOFT)
        return log_decay, beta

    def _form(self, part: Part) -> BlockFormat | None:
        sensitive = part.tensor.endswith((".in_proj_a.weight", ".in_proj_b.weight"))
        return self.weights.sensitive if sensitive else self.weights.matrix(self.source.kind(part.tensor))

    def _input_scale(self, part: Part) -> np.float32 | None:
        """Global scale of the activations that `part` is multiplied with; None: they are not rounded."""
        if self.weights.activations == "f32":
            return None
        weight = self.source.weight(part.tensor)
        return weight.input_scale if isinstance(weight, Nvfp4Weight) else None

    def _product(
        self,
        g: GraphBuilder,
        x: str,
        name: str,
        parts: Sequence[Part],
        form: BlockFormat | None,
        output: str | None = None,
    ) -> str:
        rows, columns = sum(part.rows for part in parts), self._columns(parts)
        if form is None:
            return g.op("MatMul", [x, g.weight(f"{name}.transposed", lambda: self._transposed(parts))], output=output)
        inputs = [x, *self._encoded(g, name, parts, form)]
        return g.op(
            "MatMulNBits",
            inputs,
            domain=MICROSOFT,
            output=output,
            K=columns,
            N=rows,
            bits=form.bits,
            block_size=form.block,
            accuracy_level=self.weights.accuracy_level,
        )

    def _encoded(self, g: GraphBuilder, name: str, parts: Sequence[Part], form: BlockFormat) -> tuple[str, str]:
        """Initializers of the stacked parts: (codes, scales)."""
        rows, columns = sum(part.rows for part in parts), self._columns(parts)
        scales: list[F32] = []

        def codes() -> Iterator[NDArray[np.uint8]]:
            for part in parts:
                weight = self.source.weight(part.tensor)
                for selection in part.selections(weight):
                    encoded, scale = encode(form, weight, selection)
                    scales.append(scale)
                    yield encoded

        stem = f"{name}.{form.bits}bit"
        return (
            g.stream(f"{stem}.codes", np.uint8, form.codes_shape(rows, columns), codes),
            g.weight(f"{stem}.scales", lambda: np.concatenate(scales)),
        )

    def _rows(self, g: GraphBuilder, part: Part) -> str:
        """Initializer f32 [rows, in]."""
        shape = [part.rows, self._columns([part])]
        return g.stream(f"{_stem(part)}.rows", np.float32, shape, lambda: part.pieces(self.source))

    def _transposed(self, parts: Sequence[Part]) -> F32:
        return np.ascontiguousarray(np.concatenate(list(self._pieces(parts))).T)

    def _pieces(self, parts: Sequence[Part]) -> Iterator[F32]:
        for part in parts:
            yield from part.pieces(self.source)

    def _columns(self, parts: Sequence[Part]) -> int:
        return self.source.spec.expected_tensors()[parts[0].tensor][1]


def _stem(part: Part) -> str:
    stem = part.tensor.removesuffix(".weight")
    return stem if part.index is None else f"{stem}.some"


@dataclass(frozen=True, slots=True)
class Chain:
    """`DeltaForm` over consecutive tokens that carries the state in place.

    Per layer inputs conv_{i} f32 [B, K-1, channels], state_{i} f32 [B, Hv, dk, dv] and outputs conv_out_{i},
    state_out_{i}, to be bound to the same buffers.
    """

    ends: tuple[str, ...]  # i64 [1]: S + j for each tap j

    @classmethod
    def declare(cls, g: GraphBuilder, spec: LinearSpec) -> Self:
        """Values that all layers share. The graph must have the input ``input_ids``."""
        length = g.op("Shape", ["input_ids"], start=1, end=2)
        return cls((length, *(g.op("Add", [length, g.const([j])]) for j in range(1, spec.conv_kernel))))

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        return ""

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        spec = ops.source.spec.linear
        conv, state = declare_state(g, spec, layer, "B")
        keep, axis = spec.conv_kernel - 1, g.const([1])
        rows = g.op("Concat", [conv, qkv], axis=1)
        conv_out = g.output(f"conv_out_{layer}", np.float32, ["B", keep, spec.conv_channels])
        g.op("Slice", [rows, g.const([-keep]), g.const([_END]), axis], output=conv_out)
        taps = [g.op("Slice", [rows, g.const([j]), end, axis]) for j, end in enumerate(self.ends)]
        keys = spec.key_heads * spec.key_dim
        qk, v = g.split(convolve(g, ops, taps, weights), [2 * keys, spec.value_heads * spec.value_dim])
        q, k = g.split(g.reshape(unit_heads(g, ops, qk), [0, 0, 2 * keys]), [keys, keys])
        log_decay, beta = ops.gates(g, a, b, weights.decay, weights.bias)
        shape: list[Dim] = ["B", spec.value_heads, spec.key_dim, spec.value_dim]
        outputs = [f"layers.{layer}.delta", g.output(f"state_out_{layer}", np.float32, shape)]
        heads = {"q_num_heads": spec.key_heads, "kv_num_heads": spec.value_heads}
        inputs = [q, k, v, state, log_decay, beta]
        return g.ops("LinearAttention", inputs, outputs, domain=MICROSOFT, update_rule="gated_delta", **heads)[0]
