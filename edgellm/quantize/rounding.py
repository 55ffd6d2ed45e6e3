"""Round to nearest: float32 to E2M1 codes, and a matrix to NVFP4 the way NVIDIA ModelOpt's default weight recipe does.

Formulas of the recipe: `NVFP4QTensor.get_weights_scaling_factor`, `get_weights_scaling_factor_2` and `quantize` in
ModelOpt's modelopt/torch/quantization/qtensor/nvfp4_tensor.py. What must stay true: a code is the nearest one to
x / (float32(block scale) * global scale), a block scale is never 0, NaN or negative, and the same input gives the same
bytes. Matrices are worked on in pieces of whole rows, so temporaries stay at a few MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import BLOCK, E2M1_MAX, E4M3, E4M3_MAX, F32, U8, Nvfp4, pack

# Below the first, the product with the smallest E4M3 value is no normal float32; above the second, products overflow.
_SMALLEST_GLOBAL_SCALE: Final = np.float32(2.0**-116)
_LARGEST_GLOBAL_SCALE: Final = np.float32(2.0**120)
_LARGEST_VALUE: Final = np.float32(2.0**127)  # a block scale that was rounded up may dequantise to 1.07 times as much
_SMALLEST_E4M3: Final = np.float32(2.0**-9)
_PIECE: Final = 1 << 16  # values of a piece: they stay in the second-level cache
_EXPONENT: Final = np.uint32(0x7F800000)
_CODE_OF_DOUBLED: Final[U8] = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8)  # of twice a magnitude


def round_magnitudes(values: F32) -> F32:
    """Round magnitudes >= 0 to the E2M1 grid in place: ties to the even mantissa, above 5 to 6. Returns `values`.

    The step of the grid is half the largest power of two in the value, and at least 1/2. Adding and subtracting a power
    of two whose last bit is worth one step makes the hardware round to nearest, ties to even.
    """
    np.minimum(values, np.float32(E2M1_MAX), out=values)
    anchor = (values.view(np.uint32) & _EXPONENT).view(np.float32)
    anchor = np.maximum(anchor, np.float32(1)) * np.float32(1 << 22)
    values += anchor
    values -= anchor
    return values


def to_e2m1(x: F32) -> U8:
    """Codes u8 (of the shape of `x`) of float32 values: round to nearest, ties to the even mantissa, clipped at ±6.

    The sign is kept of zero too, and of what rounds to zero. `ml_dtypes.float4_e2m1fn` converts the same way.

    Raises:
        ValueError: `x` holds NaN, which E2M1 lacks.
    """
    if np.isnan(x).any():
        raise ValueError("NaN has no E2M1 code")
    doubled = round_magnitudes(np.abs(x, out=np.empty(x.shape, np.float32)))
    doubled *= np.float32(2)
    codes: U8 = _CODE_OF_DOUBLED[doubled.astype(np.uint8)] | np.signbit(x).astype(np.uint8) << np.uint8(3)
    return codes


def checked_amax(matrix: F32) -> np.float32:
    """Largest magnitude of a matrix [out, in], 0 for an empty one.

    Raises:
        ValueError: `matrix` is not float32, not 2-D, its columns are no multiple of 16, or it holds NaN, infinity or
            a magnitude above 2^127.
    """
    if matrix.dtype != np.float32:
        raise ValueError(f"the matrix must be float32, not {matrix.dtype}")
    if matrix.ndim != 2:
        raise ValueError(f"the matrix must have 2 dimensions, not {matrix.ndim}")
    if matrix.shape[1] % BLOCK:
        raise ValueError(f"the matrix has {matrix.shape[1]} columns, which is no multiple of {BLOCK}")
    amax: np.float32 = np.maximum(matrix.max(initial=0), -matrix.min(initial=0))
    if not amax <= _LARGEST_VALUE:
        problem = "NaN" if np.isnan(amax) else "infinity" if np.isinf(amax) else "a magnitude above 2^127"
        raise ValueError(f"the matrix holds {problem}")
    return amax


def global_scale_of(amax: np.float32) -> np.float32:
    """amax / (6 * 448), at least 2^-116 (also for amax 0). Matrices that share a scale take it of their largest amax.

    Args:
        amax: as `checked_amax` returns it.
    """
    return max(amax / np.float32(E2M1_MAX * E4M3_MAX), _SMALLEST_GLOBAL_SCALE)


def checked_global_scale(global_scale: np.float32) -> np.float32:
    """`global_scale` as float32.

    Raises:
        ValueError: it is NaN or not between 2^-116 and 2^120.
    """
    if not _SMALLEST_GLOBAL_SCALE <= global_scale <= _LARGEST_GLOBAL_SCALE:
        raise ValueError(f"the global scale must be between 2^-116 and 2^120, not {global_scale}")
    return np.float32(global_scale)


def row_pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of at least one row that together are all rows of a matrix of `shape`."""
    rows, columns = shape
    step = max(1, _PIECE // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def nearest_block_scales(rows: F32, global_scale: np.float32) -> NDArray[Any]:
    """E4M3 [rows, in / 16] of rows [rows, in]: amax of the block / (6 * global scale), as float32, rounded to nearest.

    As in ModelOpt a quotient of 0 becomes 1, and the others are clipped to [2^-9, 448] before they are rounded.
    """
    amax = np.abs(rows).reshape(len(rows), -1, BLOCK).max(-1)
    quotients = amax / (np.float32(E2M1_MAX) * global_scale)
    quotients[quotients == 0] = 1
    scales: NDArray[Any] = np.clip(quotients, _SMALLEST_E4M3, np.float32(E4M3_MAX)).astype(E4M3)
    return scales


def encode(matrix: F32, block_scales: NDArray[Any], global_scale: np.float32) -> Nvfp4:
    """The nearest codes of a matrix [out, in] for given E4M3 block scales [out, in / 16] (above 0) and global scale."""
    packed = np.empty((matrix.shape[0], matrix.shape[1] // 2), np.uint8)
    for piece in row_pieces(matrix.shape):
        rows, scales = matrix[piece], block_scales[piece].astype(np.float32) * global_scale
        ratios = rows.reshape(*scales.shape, BLOCK) / scales[..., None]
        packed[piece] = pack(to_e2m1(ratios.reshape(rows.shape)))
    return Nvfp4(packed, block_scales, global_scale)


def round_to_nearest(matrix: F32, global_scale: np.float32 | None = None) -> Nvfp4:
    """NVFP4 of a matrix f32 [out, in] by ModelOpt's default weight recipe.

    global scale = amax(matrix) / (6 * 448), block scale = E4M3(amax(block) / (6 * global scale)), code =
    `to_e2m1`(x / (float32(block scale) * global scale)). Two differences from ModelOpt: a global scale below 2^-116 is
    raised to it (ModelOpt's is 0 for a zero matrix, and its block scales are then NaN), and a value of -0 keeps its
    sign.

    Args:
        global_scale: used instead of the formula. Values above 6 * 448 times it are clipped.

    Raises:
        ValueError: like `checked_amax` and `checked_global_scale`.
    """
    amax = checked_amax(matrix)
    scale = global_scale_of(amax) if global_scale is None else checked_global_scale(global_scale)
    block_scales = np.empty((matrix.shape[0], matrix.shape[1] // BLOCK), E4M3)
    for piece in row_pieces(matrix.shape):
        block_scales[piece] = nearest_block_scales(matrix[piece], scale)
    return encode(matrix, block_scales, scale)
