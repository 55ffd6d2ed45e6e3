"""Building blocks shared by the decoder and the MTP graph: embedding, projections, norms, attention, MLP, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.reader import Checkpoint
from edgellm.graph.builder import MS, Dim, GraphBuilder
from edgellm.graph.encodings import Precision, quantize_blocks
from edgellm.graph.rope import Rope

F32 = NDArray[np.float32]
KV = tuple[str, str, str, str]  # past key, past value, present key, present value (present aliases past)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Precision of the large matrices and the block that shares a scale."""

    precision: Precision = "f32"
    block: int = 32
    accuracy_level: int = 4  # int8 activations; 0 keeps float32


@dataclass(slots=True)
class Layers:
    g: GraphBuilder
    checkpoint: Checkpoint
    format: WeightFormat
    progress: Callable[[str], None] = lambda name: None

    def tensor(self, name: str) -> F32:
        """A checkpoint tensor as float32."""
        return np.asarray(self.checkpoint.tensor(name), dtype=np.float32)

    def embed(self, ids: str) -> str:
        """Rows of the embedding table; kept in f16 when the matrices are quantised."""
        if self.format.precision == "f32":
            table = self.g.weight("embed", lambda: self.tensor("embed_tokens.weight"))
            return self.g.op("Gather", [table, ids])
        table = self.g.weight("embed_f16", lambda: self.tensor("embed_tokens.weight").astype(np.float16))
        return self.g.op("Cast", [self.g.op("Gather", [table, ids])], to=1)

    def linear(
        self,
        x: str,
        name: str,
        parts: Sequence[str] | Callable[[], F32],
        outputs: int,
        inputs: int,
        output: str | None = None,
    ) -> str:
        """x @ W^T; `parts` are tensors stacked by rows (a fused projection) or a function that makes W [out, in]."""

        def load() -> F32:
            self.progress(name)
            weight = parts() if callable(parts) else np.concatenate([self.tensor(part) for part in parts])
            if weight.shape != (outputs, inputs):
                raise AssertionError(f"{name}: {weight.shape}, expected {(outputs, inputs)}")
            return weight

        g, form = self.g, self.format
        if form.precision == "f32":
            return g.op("MatMul", [x, g.weight(name, lambda: np.ascontiguousarray(load().T))], output=output)
        bits = 8 if form.precision == "int8" else 4
        made: list[F32] = []

        def codes() -> NDArray[np.uint8]:
            quantized = quantize_blocks(load(), bits, form.block)
            made.append(quantized.scales)
            return quantized.codes

        code_name = g.weight(f"{name}.codes", codes)
        scale_name = g.weight(f"{name}.scales", lambda: made.pop())
        return g.op(
            "MatMulNBits",
            [x, code_name, scale_name],
            domain=MS,
            output=output,
            K=inputs,
            N=outputs,
            bits=bits,
            block_size=form.block,
            accuracy_level=form.accuracy_level,
        )

    def norm(self, x: str, name: str, *, output: str | None = None) -> str:
        """RMSNorm with weight 1 + w."""
        weight = self.g.weight(name, lambda: 1.0 + self.tensor(name))
        return self.g.op("RMSNormalization", [x, weight], output=output, axis=-1, epsilon=self.checkpoint.spec.rms_eps)

    def add_norm(self, residual: str, update: str, name: str, *, output: str | None = None) -> tuple[str, str]:
        """(residual + update, its RMSNorm); `update` is empty before the first layer."""
        if not update:
            return residual, self.norm(residual, name, output=output)
        weight = self.g.weight(name, lambda: 1.0 + self.tensor(name))
        total, normed = f"{name}.residual", output or f"{name}.normed"
        self.g.ops(
            "SkipSimplifiedLayerNormalization",
            [residual, update, weight],
            [normed, "", "", total],
            domain=MS,
            epsilon=self.checkpoint.spec.rms_eps,
        )
        return total, normed

    def silu(self, x: str) -> str:
        """x·sigmoid(x); QuickGelu with alpha 1 is the same function in one kernel."""
        return self.g.op("QuickGelu", [x], domain=MS, alpha=1.0)

    def kv_inputs(self, key: str, value: str, batch: Dim) -> KV:
        """Declare one attention layer's cache rows f32 [B, KV, M, head_dim], in and out."""
        spec = self.checkpoint.spec.attention
        shape: list[Dim] = [batch, spec.kv_heads, "M", spec.head_dim]
        return (
            self.g.input(key, np.float32, shape),
            self.g.input(value, np.float32, shape),
            self.g.output(_out(key), np.float32, shape),
            self.g.output(_out(value), np.float32, shape),
        )

    def attention(self, x: str, name: str, positions: str, rope: Rope, trailing: Sequence[str], kv: KV) -> str:
        """Gated attention: o_proj(softmax(q k^T / sqrt(d)) v · sigmoid(gate)). New rows are appended in place."""
        g, spec, hidden = self.g, self.checkpoint.spec.attention, self.checkpoint.spec.hidden
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        def fused() -> F32:
            q = self.tensor(f"{name}.q_proj.weight").reshape(spec.heads, 2, spec.head_dim, hidden)
            halves = [q[:, half].reshape(queries, hidden) for half in (0, 1)]
            return np.concatenate([*halves, self.tensor(f"{name}.k_proj.weight"), self.tensor(f"{name}.v_proj.weight")])

        projected = self.linear(x, f"{name}.in", fused, 2 * queries + 2 * keys, hidden)
        q, gate, k, v = g.split(projected, [queries, queries, keys, keys])
        q = self._rope_norm(q, f"{name}.q_norm.weight", spec.heads, positions, rope)
        k = self._rope_norm(k, f"{name}.k_norm.weight", spec.kv_heads, positions, rope)
        context = g.ops(
            "GroupQueryAttention",
            [q, k, v, kv[0], kv[1], *trailing],
            [f"{name}.context", kv[2], kv[3]],
            domain=MS,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
        )[0]
        gated = g.op("Mul", [context, g.op("Sigmoid", [gate])])
        return self.linear(gated, f"{name}.o_proj", [f"{name}.o_proj.weight"], hidden, queries)

    def _rope_norm(self, x: str, name: str, heads: int, positions: str, rope: Rope) -> str:
        size = self.checkpoint.spec.attention.head_dim
        normed = self.g.reshape(self.norm(self.g.reshape(x, [0, 0, heads, size]), name), [0, 0, heads * size])
        return self.g.op(
            "RotaryEmbedding",
            [normed, rope.cos, rope.sin, positions],
            num_heads=heads,
            rotary_embedding_dim=rope.rotary_dim,
        )

    def mlp(self, x: str, name: str) -> str:
        """SwiGLU."""
        spec = self.checkpoint.spec
        parts = [f"{name}.gate_proj.weight", f"{name}.up_proj.weight"]
        gate, up = self.g.split(
            self.linear(x, f"{name}.in", parts, 2 * spec.intermediate, spec.hidden), [spec.intermediate] * 2
        )
        return self.linear(
            self.g.op("Mul", [self.silu(gate), up]),
            f"{name}.down_proj",
            [f"{name}.down_proj.weight"],
            spec.hidden,
            spec.intermediate,
        )

    def head(self, x: str, *, output: str | None = None) -> str:
        """Logits [R, vocab]."""
        spec = self.checkpoint.spec
        source = "embed_tokens.weight" if spec.tied_embeddings else "lm_head.weight"
        return self.linear(x, "lm_head", [source], spec.vocab, spec.hidden, output)


def _out(name: str) -> str:
    stem, _, index = name.rpartition("_")
    return f"{stem}_out_{index}" if index.isdigit() else f"{name}_out"
