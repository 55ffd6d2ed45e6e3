"""Quantized weights [out, in] of checkpoints, as `weights.Weight`.

What must stay true: `to_float32` is exactly what the format defines, in float32 and in the order of operations of the
library that writes it, so that values are equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import F32, Nvfp4
from edgellm.checkpoint.weights import Rows, WeightKind


@dataclass(frozen=True, slots=True)
class Nvfp4Weight:
    """NVFP4. Activations are NVFP4 too where there is an `input_scale` (W4A4), else 16-bit (W4A16)."""

    matrix: Nvfp4
    input_scale: np.float32 | None  # of activations: amax / (6 · 448), whatever the checkpoint's convention

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def kind(self) -> WeightKind:
        return "nvfp4"

    def to_float32(self, rows: Rows = slice(None)) -> F32:
        return self.matrix.to_float32(rows)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """E4M3 with one scale per matrix or per row: value = float32(e4m3) · scale."""

    data: NDArray[Any]  # E4M3 [out, in]
    scales: F32  # [1, 1] or [out, 1]
    input_scale: np.float32 | None

    @property
    def shape(self) -> tuple[int, int]:
        out, inner = self.data.shape
        return out, inner

    @property
    def kind(self) -> WeightKind:
        return "fp8"

    def to_float32(self, rows: Rows = slice(None)) -> F32:
        scales = self.scales if len(self.scales) == 1 else self.scales[rows]
        return self.data[rows].astype(np.float32) * scales


@dataclass(frozen=True, slots=True)
class Fp8BlockWeight:
    """E4M3 with one scale per tile (Hugging Face's ``weight_scale_inv``): value = float32(e4m3) · scale."""

    data: NDArray[Any]  # E4M3 [out, in]
    scales: F32  # [ceil(out / tile rows), ceil(in / tile columns)]
    tile: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        out, inner = self.data.shape
        return out, inner

    @property
    def kind(self) -> WeightKind:
        return "fp8_block"

    def to_float32(self, rows: Rows = slice(None)) -> F32:
        height, width = self.tile
        values = self.data[rows].astype(np.float32)
        chosen = np.arange(len(self.data))[rows] // height
        for column in range(self.scales.shape[1]):
            part = slice(column * width, (column + 1) * width)
            values[:, part] *= self.scales[chosen, column, None]
        return values
