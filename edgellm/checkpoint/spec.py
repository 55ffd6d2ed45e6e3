"""`ModelSpec`: the shape of a Qwen3.5/3.6-type hybrid text model, read from ``config.json``.

Everything downstream (graph, executor, cache sizes, simulator) takes its sizes from here; nothing is hard-coded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Gated full attention (also the shape of the MTP layer)."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # leading dims of a head that RoPE turns
    rope_theta: float


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """Gated DeltaNet."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: q, k (key heads) and v (value heads)."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Frozen description of one model. `layers[i]` is the kind of decoder layer i."""

    model_type: str
    hidden: int
    intermediate: int
    vocab: int
    layers: tuple[LayerKind, ...]
    rms_eps: float
    tied_embeddings: bool
    max_positions: int
    attention: AttentionSpec
    linear: LinearSpec
    mtp_layers: int  # 0 or 1

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of full-attention layers."""
        return tuple(i for i, k in enumerate(self.layers) if k == "full_attention")

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of Gated DeltaNet layers."""
        return tuple(i for i, k in enumerate(self.layers) if k == "linear_attention")
