"""Stored forms of a float32 matrix [out, in] in blocks of columns that share a scale.

The layout is the one of `com.microsoft.MatMulNBits` and `GatherBlockQuantized`: unsigned codes whose middle (128 or 8)
stands for zero, two 4-bit codes per byte with the even column in the low half, one float32 scale per row and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import BLOCK, E2M1, Nvfp4, unpack
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.weights import Rows, Weight, WeightKind
from edgellm.errors import ConfigError

Precision = Literal["f32", "int8", "int4", "nvfp4"]
Activations = Literal["f32", "nvfp4"]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Codes of `bits` bits, one scale per `block` columns. Symmetric: value = (code - 2^(bits-1)) * scale."""

    bits: int
    block: int

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ConfigError(f"weight bits must be 4 or 8, not {self.bits}")
        if self.block not in (16, 32, 64, 128, 256):
            raise ConfigError(f"weight block size must be 16, 32, 64, 128 or 256, not {self.block}")

    def blocks(self, columns: int) -> int:
        """Blocks of a row; the last one is filled up with zeros."""
        return -(-columns // self.block)

    def codes_shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Shape of the codes of a [rows, columns] matrix."""
        return rows, self.blocks(columns), self.block * self.bits // 8

    def encode(self, matrix: F32) -> tuple[U8, F32]:
        """Round to nearest: (codes u8 `codes_shape`, scales f32 [rows, blocks]).

        With 4 bits the value of largest magnitude gets the code -8, which is farther from zero than +7.
        """
        rows, columns = matrix.shape
        blocks, middle = self.blocks(columns), 1 << (self.bits - 1)
        if blocks * self.block != columns:
            matrix = np.pad(matrix, ((0, 0), (0, blocks * self.block - columns)))
        grouped = matrix.reshape(rows, blocks, self.block)
        if self.bits == 4:
            largest = np.take_along_axis(grouped, np.abs(grouped).argmax(-1, keepdims=True), -1)
            scales = largest / np.float32(-middle)
        else:
            scales = np.abs(grouped).max(-1, keepdims=True) / np.float32(middle - 1)
        codes = np.rint(grouped / np.where(scales == 0, np.float32(1), scales))
        codes += np.float32(middle)
        packed = np.clip(codes, 0, 2 * middle - 1, out=codes).astype(np.uint8)
        if self.bits == 4:
            packed = packed[..., 0::2] | packed[..., 1::2] << np.uint8(4)
        return packed, np.ascontiguousarray(scales[..., 0])

    def decode(self, codes: U8, scales: F32, columns: int) -> F32:
        """The float32 matrix [rows, columns] that the codes stand for."""
        unpacked = codes if self.bits == 8 else np.stack([codes & 15, codes >> 4], axis=-1)
        centred = unpacked.reshape(*scales.shape, self.block).astype(np.float32) - np.float32(1 << (self.bits - 1))
        values: F32 = centred * scales[..., None]
        return np.ascontiguousarray(values.reshape(len(codes), -1)[:, :columns])


NVFP4_EXACT: Final = BlockFormat(8, BLOCK)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Stored forms of a model's weights: `precision` of the large matrices, `block` columns share a scale.

    "nvfp4" keeps the matrices that a checkpoint has in NVFP4, without a change of value, and float32 of all others.
    `accuracy_level` is the one of MatMulNBits: 4 rounds activations to 8 bits by blocks (fast), 0 keeps them float32.
    With `activations` "nvfp4" those that go into matrices with an ``input_scale`` have the values that NVFP4 holds, as
    on a device that multiplies NVFP4 with NVFP4 (W4A4); slow.
    """

    precision: Precision = "f32"
    block: int = 32
    accuracy_level: int = 4
    activations: Activations = "f32"

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise ConfigError(f"weight precision must be one of {known}, not {self.precision!r}")
        if self.accuracy_level not in (0, 4):
            raise ConfigError(f"accuracy level must be 0 or 4, not {self.accuracy_level}")
        if self.activations not in get_args(Activations):
            raise ConfigError(
                f"activations must be one of {', '.join(get_args(Activations))}, not {self.activations!r}"
            )
        if self.activations == "nvfp4" and (self.accuracy_level != 0 or self.precision not in ("f32", "nvfp4")):
            raise ConfigError("activations in nvfp4 need precision nvfp4 or f32, and accuracy_level 0")

    def matrix(self, kind: WeightKind) -> BlockFormat | None:
        """Of a large matrix that the checkpoint has as `kind`; None is float32."""
        match self.precision:
            case "f32":
                return None
            case "nvfp4":
                return NVFP4_EXACT if kind == "nvfp4" else None
            case precision:
                return BlockFormat(8 if precision == "int8" else 4, self.block)

    @property
    def sensitive(self) -> BlockFormat | None:
        """Of what costs little and matters much: the embedding (one row per token) and the decay and rate
        projections (one row per head)."""
        return None if self.precision in ("f32", "nvfp4") else BlockFormat(8, self.block)


_DOUBLED: Final[U8] = (E2M1 * np.float32(2) + np.float32(128)).astype(np.uint8)


def nvfp4_exact(matrix: Nvfp4, rows: Rows = slice(None)) -> tuple[U8, F32]:
    """Rows of NVFP4 in the form `NVFP4_EXACT` without a change of value: 2 * e2m1 is an integer, the scale is halved.

    Halving is exact but for scales below 2^-125, which no model has.

    Returns:
        (codes u8 [rows, in/16, 16], scales f32 [rows, in/16]).
    """
    codes = _DOUBLED[unpack(matrix.packed[rows])]
    scales = matrix.scales(rows) * np.float32(0.5)
    return codes.reshape(*scales.shape, BLOCK), scales


def encode(form: BlockFormat, weight: Weight, rows: Rows) -> tuple[U8, F32]:
    """Rows of a checkpoint's matrix in `form`; exact where both are NVFP4's blocks."""
    if isinstance(weight, Nvfp4Weight) and form == NVFP4_EXACT:
        return nvfp4_exact(weight.matrix, rows)
    return form.encode(weight.to_float32(rows))
