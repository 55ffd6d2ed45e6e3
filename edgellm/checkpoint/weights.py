"""A linear layer's weight as a checkpoint stores it.

The graph builder asks for float32 rows or for the stored form; it never looks into files. A quantized form (packed
values with their scales) is another class that satisfies `Weight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

WeightKind = Literal["bf16", "f16", "f32", "nvfp4", "fp8", "fp8_block"]


Rows = slice | NDArray[np.intp]  # which rows of a matrix, in which order


class Weight(Protocol):
    """Weight [out, in] of ``y = W x``."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix it stands for, whatever is stored."""

    @property
    def kind(self) -> WeightKind:
        """The stored form."""

    def to_float32(self, rows: Rows = ...) -> NDArray[np.float32]:
        """Rows [rows, in] as float32, exact; all of them by default."""


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """Unquantized weight: `data` is bfloat16, float16 or float32 [out, in], usually a view of the mapped file."""

    data: NDArray[Any]
    kind: WeightKind

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        out, inner = self.data.shape
        return out, inner

    def to_float32(self, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """Rows as a new or read-only float32 array; bfloat16 and float16 widen exactly."""
        return np.ascontiguousarray(self.data[rows], dtype=np.float32)
