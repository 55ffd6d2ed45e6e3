"""RoPE tables. Text positions make the family's interleaved multimodal RoPE plain RoPE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import AttentionSpec
from edgellm.graph.builder import GraphBuilder


class RopeTables(NamedTuple):
    """Initializers f32 [positions, rotary_dim / 2]."""

    cos: str
    sin: str


def rope_tables(g: GraphBuilder, spec: AttentionSpec, positions: int) -> RopeTables:
    """Tables of cos and sin of `rope_angles`."""
    return RopeTables(
        g.weight(f"rope.{positions}.cos", lambda: np.cos(rope_angles(spec, positions))),
        g.weight(f"rope.{positions}.sin", lambda: np.sin(rope_angles(spec, positions))),
    )


def rope_angles(spec: AttentionSpec, positions: int) -> NDArray[np.float32]:
    """Angles position * theta^(-2i / rotary_dim) for positions 0 … positions - 1, f32 [positions, rotary_dim / 2].

    Frequencies and angles are rounded to float32 as in the reference implementation, which trained models have seen.
    """
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float32) / np.float32(spec.rotary_dim)
    frequencies = np.float32(1) / np.power(np.float32(spec.rope_theta), exponents)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies)
