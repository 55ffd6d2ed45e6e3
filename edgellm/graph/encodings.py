"""How a [out, in] float32 matrix is stored for the ONNX Runtime CPU kernels.

Block forms follow `com.microsoft.MatMulNBits`: per row, blocks of consecutive input columns share a scale; the zero
point is the middle of the code range (128 or 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Precision = Literal["f32", "int8", "int4"]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockQuantized:
    """codes u8 [out, blocks, block*bits/8] and scales f32 [out, blocks]."""

    codes: NDArray[np.uint8]
    scales: F32
    bits: int
    block: int


def quantize_blocks(weight: F32, bits: int, block: int) -> BlockQuantized:
    """Symmetric round-to-nearest by blocks. The largest magnitude of a block maps to the end of the longer half.

    Args:
        weight: float32 [out, in]; `in` is padded with zeros to a whole number of blocks.
        bits: 4 or 8.
    """
    rows, columns = weight.shape
    blocks = -(-columns // block)
    padded = np.zeros((rows, blocks * block), np.float32)
    padded[:, :columns] = weight
    grouped = padded.reshape(rows, blocks, block)
    middle = 1 << (bits - 1)
    if bits == 4:  # -8 is the code farther from zero: give it to the largest value
        largest = np.take_along_axis(grouped, np.abs(grouped).argmax(-1, keepdims=True), -1)[..., 0]
        scales = largest / -middle
    else:
        scales = np.abs(grouped).max(-1) / (middle - 1)
    scales = np.where(scales == 0, 1e-12, scales).astype(np.float32)
    codes = np.clip(np.rint(grouped / scales[..., None]) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return BlockQuantized(codes, np.asarray(scales, np.float32), bits, block)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nvfp4_exact(codes: NDArray[np.uint8], block_scales: F32, global_scale: float) -> BlockQuantized:
    """NVFP4 weights in an 8-bit form with the same values: 2·e2m1 is an integer, the scale is halved.

    Args:
        codes: e2m1 codes 0..15, u8 [out, in], `in` a multiple of 16.
        block_scales: E4M3 values as float32 [out, in/16].
        global_scale: `weight_scale_2`.
    """
    rows, columns = codes.shape
    doubled = (np.rint(E2M1[codes] * 2).astype(np.int16) + 128).astype(np.uint8)
    scales = (block_scales * np.float32(global_scale) * np.float32(0.5)).astype(np.float32)
    return BlockQuantized(doubled.reshape(rows, columns // 16, 16), scales, 8, 16)
