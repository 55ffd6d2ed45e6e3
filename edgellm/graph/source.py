"""What the graph reads from a checkpoint, and how checkpoint matrices are stacked into the graph's fused ones.

What must stay true: a matrix is read in pieces of bounded size, so that building needs memory for one piece (or, for
float32 products, one matrix) and not for a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import AttentionSpec, ModelSpec
from edgellm.checkpoint.weights import Rows, Weight, WeightKind

F32 = NDArray[np.float32]
PIECE_BYTES: Final = 64 << 20  # float32 bytes of the pieces that a matrix is read in


class Source(Protocol):
    """A checkpoint as the graph sees it; `edgellm.checkpoint.reader.Checkpoint` is one."""

    @property
    def spec(self) -> ModelSpec: ...

    def tensor(self, name: str) -> NDArray[Any]:
        """The tensor with the canonical name `name`."""
        ...

    def weight(self, name: str) -> Weight:
        """The matrix [out, in] with the canonical name `name`."""
        ...

    def kind(self, name: str) -> WeightKind:
        """How that matrix is stored, without reading it."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one checkpoint matrix [out, in]: a part of a projection."""

    tensor: str
    rows: int
    index: NDArray[np.intp] | None = None  # which rows, in which order; all of them by default

    def selections(self, weight: Weight) -> Iterator[Rows]:
        """The rows of `weight` in pieces of at most `PIECE_BYTES` as float32."""
        step = max(1, PIECE_BYTES // (4 * weight.shape[1]))
        for start in range(0, self.rows, step):
            piece = slice(start, min(start + step, self.rows))
            yield piece if self.index is None else self.index[piece]

    def pieces(self, source: Source) -> Iterator[F32]:
        """The rows as float32 [n, in], at most `PIECE_BYTES` at a time."""
        weight = source.weight(self.tensor)
        for rows in self.selections(weight):
            yield weight.to_float32(rows)


def vector(source: Source, name: str) -> F32:
    """A small tensor as float32."""
    return np.asarray(source.tensor(name), dtype=np.float32)


def attention_parts(spec: AttentionSpec, name: str) -> list[Part]:
    """[q | gate | k | v] of the attention layer `name`. `q_proj` holds, per head, the query rows and the gate rows."""
    heads = np.arange(2 * spec.heads * spec.head_dim, dtype=np.intp).reshape(spec.heads, 2, spec.head_dim)
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return [
        Part(f"{name}.q_proj.weight", queries, heads[:, 0].ravel()),
        Part(f"{name}.q_proj.weight", queries, heads[:, 1].ravel()),
        Part(f"{name}.k_proj.weight", keys),
        Part(f"{name}.v_proj.weight", keys),
    ]
