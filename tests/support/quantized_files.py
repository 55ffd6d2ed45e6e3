"""Quantized tensors as the known libraries lay them out, made with ml_dtypes' own 4-bit and 8-bit floats.

Independent of `edgellm.checkpoint.nvfp4`: values are checked against what this module says a tensor means.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def nvfp4(matrix: Array, global_scale: float | None = None) -> tuple[Array, Array, np.float32, Array]:
    """(packed u8, block scales E4M3, global scale, the float32 values they stand for) of [out, in]."""
    rows, columns = matrix.shape
    blocks = matrix.astype(np.float32).reshape(rows, columns // 16, 16)
    factor = np.float32(global_scale or max(np.abs(blocks).max() / (6 * 448), 1e-12))
    scales = (np.abs(blocks).max(-1) / np.float32(6) / factor).astype(E4M3)
    whole = scales.astype(np.float32) * factor
    codes = (blocks / np.where(whole == 0, 1, whole)[..., None]).astype(E2M1)
    values = (codes.astype(np.float32) * whole[..., None]).reshape(rows, columns)
    nibbles = codes.view(np.uint8).reshape(rows, columns)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << np.uint8(4), scales, factor, values


def put_nvfp4(tensors: Tensors, module: str, *, global_scale: float | None = None, activations: bool = True) -> Array:
    """Replace a module's weight by ModelOpt's NVFP4; the values it now has."""
    packed, scales, factor, values = nvfp4(tensors.pop(f"{module}.weight"), global_scale)
    tensors[f"{module}.weight"] = packed
    tensors[f"{module}.weight_scale"] = scales
    tensors[f"{module}.weight_scale_2"] = np.array(factor, np.float32)
    if activations:
        tensors[f"{module}.input_scale"] = np.array(0.01, np.float32)
    return values


def put_compressed_nvfp4(tensors: Tensors, module: str, divisor: float | None = None) -> Array:
    """The same as compressed-tensors writes it: packed under another name, the global scale as its reciprocal."""
    matrix = tensors.pop(f"{module}.weight")
    if divisor is None:
        divisor = float(6 * 448 / np.abs(matrix.astype(np.float32)).max())
    packed, scales, _, _ = nvfp4(matrix, 1 / divisor)
    tensors[f"{module}.weight_packed"] = packed
    tensors[f"{module}.weight_scale"] = scales
    tensors[f"{module}.weight_global_scale"] = np.array([divisor], np.float32)
    tensors[f"{module}.input_global_scale"] = np.array([100.0], np.float32)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(matrix.shape).view(E2M1).astype(np.float32)
    whole = scales.astype(np.float32) / np.float32(divisor)
    return (nibbles.reshape(*whole.shape, 16) * whole[..., None]).reshape(matrix.shape)


def put_fp8(tensors: Tensors, module: str, *, per_row: bool = False) -> Array:
    """E4M3 with a scale for the matrix, or one for each row."""
    matrix = tensors[f"{module}.weight"].astype(np.float32)
    largest = np.abs(matrix).max(1, keepdims=True) if per_row else np.abs(matrix).max()
    scale = np.asarray(largest / np.float32(448), np.float32)
    codes = (matrix / scale).astype(E4M3)
    tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"] = codes, scale
    return codes.astype(np.float32) * scale


def put_fp8_blocks(tensors: Tensors, module: str, tile: tuple[int, int]) -> Array:
    """E4M3 with a scale per tile under Hugging Face's name."""
    matrix = tensors[f"{module}.weight"].astype(np.float32)
    rows, columns = (-(-size // side) for size, side in zip(matrix.shape, tile, strict=True))
    scales = np.empty((rows, columns), np.float32)
    codes, values = np.empty(matrix.shape, E4M3), np.empty(matrix.shape, np.float32)
    for i in range(rows):
        for j in range(columns):
            part = np.s_[i * tile[0] : (i + 1) * tile[0], j * tile[1] : (j + 1) * tile[1]]
            scales[i, j] = np.abs(matrix[part]).max() / 448
            codes[part] = (matrix[part] / scales[i, j]).astype(E4M3)
            values[part] = codes[part].astype(np.float32) * scales[i, j]
    tensors[f"{module}.weight"], tensors[f"{module}.weight_scale_inv"] = codes, scales
    return values
