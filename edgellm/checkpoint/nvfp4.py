"""NVFP4: 4-bit floats in blocks of 16 columns, an E4M3 scale per block and one float32 scale per matrix.

value = e2m1(code) * (float32(block scale) * global scale), in float32 and in this order: the product of the two scales
is rounded first (as ModelOpt's `NVFP4QTensor.dequantize` does). Two codes share a byte, the even column in its low
half; the order of the bits of a code is sign, two of exponent, one of mantissa (OCP MX E2M1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.weights import Rows

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

BLOCK: Final = 16
E2M1: Final[F32] = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E2M1.flags.writeable = False
E4M3: Final = np.dtype(ml_dtypes.float8_e4m3fn)
E2M1_MAX: Final = 6.0
E4M3_MAX: Final = 448.0


def unpack(packed: U8) -> U8:
    """Codes u8 [out, in] of packed u8 [out, in / 2]."""
    rows, half = packed.shape
    codes = np.empty((rows, 2 * half), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    return codes


def pack(codes: U8) -> U8:
    """The inverse of `unpack`."""
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """A matrix [out, in].

    Attributes:
        packed: u8 [out, in / 2].
        block_scales: E4M3 [out, in / 16].
        global_scale: f32, above 0.
        divides: the global scale is stored as its reciprocal, by which block scales are divided (compressed-tensors).
    """

    packed: U8
    block_scales: NDArray[Any]
    global_scale: np.float32
    divides: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return len(self.packed), 2 * self.packed.shape[1]

    def scales(self, rows: Rows = slice(None)) -> F32:
        """f32 [rows, in / 16]: what a code's value is multiplied with."""
        blocks = self.block_scales[rows].astype(np.float32)
        return blocks / self.global_scale if self.divides else blocks * self.global_scale

    def to_float32(self, rows: Rows = slice(None)) -> F32:
        """Rows as float32 [rows, in]."""
        values = E2M1[unpack(self.packed[rows])]
        blocks = values.reshape(len(values), -1, BLOCK) * self.scales(rows)[..., None]
        return blocks.reshape(values.shape)
