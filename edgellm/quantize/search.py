"""A search of NVFP4's block scales for the least squared error; nothing of the format changes.

The error of a block over its scale has two valleys: one where the largest value takes the code 6 and one, 1.5 times
higher, where it takes 4 and the wide gap between 4 and 6 stays empty ("Four Over Six", arXiv:2512.02010). Importance
weights add a third, far below, where an unimportant large value is clipped.

What must stay true: the scale of round to nearest is always a candidate and wins ties, so no block gets worse than
with round to nearest (up to float32 rounding of the sums), and errors are those of what `Nvfp4.to_float32` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import BLOCK, E4M3, F32, U8, Nvfp4
from edgellm.quantize.rounding import (
    checked_amax,
    checked_global_scale,
    encode,
    global_scale_of,
    nearest_block_scales,
    round_magnitudes,
    row_pieces,
)

# E4M3 codes (as bytes) relative to the one of round to nearest; 8 of them are a factor of 2. On Gaussian, Student t and
# uniform samples these reach the error of all 126 codes; with log-normal importance weights of sigma 4 they stay within
# 1% (from -12 on, for 40% less time, it would be 2 to 11%).
_PLAIN: Final = range(-2, 8)
_WEIGHTED: Final = range(-24, 8)
_LARGEST_CODE: Final = 126  # 448; 127 is NaN
# Among subnormal scales the steps are wide: a block whose nearest code is below the first tries all below the second,
# which hold the exact one of every representable block.
_COARSE: Final = 8
_FINE: Final = 17
_HALVES_EXACTLY: Final = 16  # 2^-5: from here on half an E4M3 value is one as well


def search_scales(matrix: F32, *, importance: F32 | None = None, global_scale: np.float32 | None = None) -> Nvfp4:
    """NVFP4 of a matrix f32 [out, in] with the block scales of least sum of importance * (value - x)^2 per block.

    A representable matrix comes back exactly when it was made with `global_scale` (columns of importance 0 aside).

    Args:
        importance: f32 [in], >= 0, e.g. the second moment of the layer's inputs; all the same by default. A block
            whose weights are all 0 is treated as if they were all 1.
        global_scale: used as it is; by default `roomy_global_scale`, so that blocks near the largest value of the
            matrix can take a higher scale too. Matrices that are fused later need the same one.

    Raises:
        ValueError: like `checked_amax`, `checked_global_scale` and `block_weights`.
    """
    amax = checked_amax(matrix)
    weights = None if importance is None else block_weights(importance, matrix.shape[1])
    scale = roomy_global_scale(matrix, amax) if global_scale is None else checked_global_scale(global_scale)
    block_scales = np.empty((matrix.shape[0], matrix.shape[1] // BLOCK), E4M3)
    for piece in row_pieces(matrix.shape):
        block_scales[piece] = best_block_scales(matrix[piece], weights, scale)
    return encode(matrix, block_scales, scale)


def block_weights(importance: F32, columns: int) -> F32:
    """Importance f32 [in] as f32 [16, 1, in / 16], relative to the largest of its block: the choice needs no more.

    Raises:
        ValueError: another shape or dtype, or a value that is NaN, infinite or below 0.
    """
    if importance.dtype != np.float32 or importance.shape != (columns,):
        raise ValueError(f"importance must be float32 [{columns}], not {importance.dtype} {list(importance.shape)}")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ValueError("importance holds NaN, infinity or a value below 0")
    weights = importance.reshape(-1, BLOCK)
    top = weights.max(-1, keepdims=True)
    relative = np.where(top > 0, weights / np.where(top > 0, top, np.float32(1)), np.float32(1))
    return np.ascontiguousarray(relative.T)[:, None]


def roomy_global_scale(matrix: F32, amax: np.float32) -> np.float32:
    """Twice `global_scale_of`(amax), or once if a block scale of round to nearest would not halve exactly."""
    scale = global_scale_of(amax)
    for piece in row_pieces(matrix.shape):
        if (nearest_block_scales(matrix[piece], scale).view(np.uint8) < _HALVES_EXACTLY).any():
            return scale
    return scale * np.float32(2)


def best_block_scales(rows: F32, weights: F32 | None, global_scale: np.float32) -> NDArray[Any]:
    """E4M3 [rows, in / 16]: the best block scales of rows f32 [rows, in]; `weights` as `block_weights` gives them.

    Values and global scale are first divided by a power of two that brings the latter into [0.5, 1): squares then
    neither overflow nor underflow, and every rounding stays the same.
    """
    start: U8 = nearest_block_scales(rows, global_scale).view(np.uint8)
    power = np.ldexp(np.float32(1), -int(np.frexp(global_scale)[1]))
    unit = global_scale * power
    blocks = np.moveaxis(rows.reshape(*start.shape, BLOCK), -1, 0)  # [16, rows, in / 16]: sums over the first axis
    magnitudes = np.abs(blocks, out=np.empty(blocks.shape, np.float32))
    magnitudes *= power
    nearby = start.astype(np.int16)
    offsets = _PLAIN if weights is None else _WEIGHTED
    candidates = (np.clip(nearby + offset, 1, _LARGEST_CODE).astype(np.uint8) for offset in offsets if offset)
    best = _best(magnitudes, weights, unit, start, candidates)
    if (coarse := start < _COARSE).any():
        some = None if weights is None else np.broadcast_to(weights, magnitudes.shape)[:, coarse]
        fine = (np.full(np.count_nonzero(coarse), code, np.uint8) for code in range(1, _FINE))
        best[coarse] = _best(magnitudes[:, coarse], some, unit, best[coarse], fine)
    return best.view(E4M3)


def _best(magnitudes: F32, weights: F32 | None, unit: np.float32, start: U8, candidates: Iterable[U8]) -> U8:
    """Per block the first code of least error of `start` and `candidates`, all u8 [...]; magnitudes f32 [16, ...]."""
    best, least = start.copy(), _errors(magnitudes, weights, unit, start)
    for codes in candidates:
        errors = _errors(magnitudes, weights, unit, codes)
        np.copyto(best, codes, where=errors < least)
        np.minimum(errors, least, out=least)
    return best


def _errors(magnitudes: F32, weights: F32 | None, unit: np.float32, codes: NDArray[Any]) -> F32:
    """Weighted squared error f32 [...] of the blocks in `magnitudes` f32 [16, ...] with scales of code u8 [...]."""
    scales = codes.view(E4M3).astype(np.float32) * unit
    errors = round_magnitudes(magnitudes / scales)
    errors *= scales
    errors -= magnitudes
    errors *= errors
    if weights is not None:
        errors *= weights
    total: F32 = errors.sum(0)
    return total
