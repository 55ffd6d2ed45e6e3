"""What a lowering supplies: the operators of one target, and the forms of the two kinds of token mixing.

The model is described once (`decoder`, `mtp`); everything that differs between targets, and between a chain and a tree,
is behind these three protocols. A form is made by declaring its graph inputs, then used once per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgellm.checkpoint.spec import LinearSpec
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.source import Part, Source


class Ops(Protocol):
    """Operators without state. Activations are float32 [batch, tokens, width] unless said otherwise."""

    @property
    def source(self) -> Source: ...

    def embed(self, g: GraphBuilder, ids: str) -> str:
        """Embedding rows of ids i64 [batch, tokens]."""
        ...

    def project(
        self, g: GraphBuilder, x: str, name: str, parts: Sequence[Part], outputs: Sequence[str] = ()
    ) -> list[str]:
        """x @ part^T for every part, fused where the parts are stored alike; `outputs` names results ("" for any)."""
        ...

    def logits(self, g: GraphBuilder, rows: str, part: Part, output: str | None = None) -> str:
        """rows [R, hidden] @ part^T; `part` is the output head or some of its rows."""
        ...

    def norm(self, g: GraphBuilder, x: str, scale: str, *, epsilon: float | None = None) -> str:
        """x / sqrt(mean(x²) + epsilon) * scale over the last axis; epsilon is the model's by default."""
        ...

    def add_norm(self, g: GraphBuilder, x: str, y: str, scale: str, output: str | None = None) -> tuple[str, str]:
        """(x + y, its norm); `output` names the norm."""
        ...

    def silu(self, g: GraphBuilder, x: str) -> str:
        """x * sigmoid(x)."""
        ...

    def gates(self, g: GraphBuilder, a: str, b: str, scale: str, bias: str) -> tuple[str, str]:
        """(scale * softplus(a + bias), sigmoid(b)): log decay and rate of the delta rule, [batch, tokens, heads]."""
        ...


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Initializers of one Gated DeltaNet layer."""

    taps: tuple[str, ...]  # f32 [channels] each: convolution weights, oldest token first
    decay: str  # f32 [value heads]: -exp(A_log)
    bias: str  # f32 [value heads]: dt_bias


class DeltaForm(Protocol):
    """How a graph runs convolution and delta rule over its tokens and where their state comes from and goes."""

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        """Name that the raw qkv projection shall have because it is also a graph output; empty for any."""
        ...

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        """From raw projections qkv [batch, tokens, channels], b and a [batch, tokens, value heads] to the output of
        the recurrence, [batch, tokens, value heads * value dim], before its norm and gate."""
        ...


class AttentionForm(Protocol):
    """How a graph normalises, rotates, caches and attends."""

    def attend(
        self, g: GraphBuilder, ops: Ops, cache: tuple[str, str], qkv: tuple[str, str, str], scales: tuple[str, str]
    ) -> str:
        """Context [batch, tokens, heads * head_dim].

        Args:
            cache: names of the layer's key and value cache, e.g. ``("k_3", "v_3")``.
            qkv: raw query, key and value projections.
            scales: of the query and the key norm, f32 [head_dim].
        """
        ...


@dataclass(frozen=True, slots=True)
class Lowering:
    """One graph's way of doing things."""

    ops: Ops
    attention: AttentionForm | None = None  # None where tokens are mixed outside of the graph
    delta: DeltaForm | None = None  # likewise, or where a graph has attention layers only
