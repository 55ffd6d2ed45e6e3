"""RoPE tables. Text-only positions make the interleaved multimodal RoPE of the family plain RoPE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import AttentionSpec
from edgellm.graph.builder import GraphBuilder


class Rope(NamedTuple):
    cos: str  # f32 [positions, rotary_dim/2]
    sin: str
    rotary_dim: int


def rope_tables(g: GraphBuilder, spec: AttentionSpec, positions: int) -> Rope:
    """cos and sin of position / theta^(2i/rotary_dim), computed in float64 and rounded once."""

    def angles() -> NDArray[np.float64]:
        frequencies = spec.rope_theta ** -(np.arange(0, spec.rotary_dim, 2) / spec.rotary_dim)
        return np.asarray(np.outer(np.arange(positions), frequencies.astype(np.float32).astype(np.float64)))

    cos = g.weight("rope.cos", lambda: np.cos(angles()).astype(np.float32))
    sin = g.weight("rope.sin", lambda: np.sin(angles()).astype(np.float32))
    return Rope(cos, sin, spec.rotary_dim)
