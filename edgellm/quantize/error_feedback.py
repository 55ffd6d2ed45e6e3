"""NVFP4 of a matrix column by column, each column making up for the errors of those before it.

With second moments H = mean of x x^T = M D M^T (M unit upper triangular, D diagonal) the output error
tr((W - Q) H (W - Q)^T) is the sum over columns k of D_k |T_k - Q_k|^2, where T_k = W_k + sum over j < k of
M_jk (W_j - Q_j) depends on earlier columns only. Rounding T_k to nearest, with D as the importance in the choice of
the block scales, is LDLQ of QuIP (arXiv:2307.13304), which proves it equal to GPTQ (arXiv:2210.17323); no inverse of H
is needed. What must stay true: without correlation (H diagonal) the result is the one of `search_scales`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import BLOCK, E2M1, E4M3, F32, U8, Nvfp4, pack
from edgellm.quantize.rounding import checked_amax, checked_global_scale, to_e2m1
from edgellm.quantize.search import best_block_scales, block_weights, roomy_global_scale

_PANEL: Final = 16 * BLOCK  # columns whose errors reach the rest of the matrix in one product
_VALUES: Final = 1 << 24  # of a piece of rows; three times as many 4-byte values are held


def compensate(
    matrix: F32, moments: NDArray[np.floating[Any]], *, damping: float = 0.1, global_scale: np.float32 | None = None
) -> Nvfp4:
    """NVFP4 of a matrix f32 [out, in] for a small error of its outputs, not of its values.

    Temporaries: about 250 MB, and two float64 matrices [in, in].

    Args:
        moments: f32 or f64 [in, in], the mean of x x^T over inputs x of the layer; symmetric, one triangle is read.
        damping: this part of the mean of the diagonal is added to it, against moments of too few inputs; above 0. On
            the first layer of edge-tiny 0.1 to 0.3 is best on unseen inputs, and 0.01 (GPTQ's) worse by up to a half.
        global_scale: as for `search_scales`.

    Raises:
        ValueError: like `checked_amax` and `checked_global_scale`; or `moments` has another shape, holds NaN or
            infinity, or is not positive semidefinite, or zero; or `damping` is not above 0.
    """
    amax = checked_amax(matrix)
    scale = roomy_global_scale(matrix, amax) if global_scale is None else checked_global_scale(global_scale)
    rows, columns = matrix.shape
    feedback, variances = _factors(moments, columns, damping)
    weights = block_weights(variances, columns)
    packed = np.empty((rows, columns // 2), np.uint8)
    block_scales = np.empty((rows, columns // BLOCK), E4M3)
    step = max(BLOCK, _VALUES // columns)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        codes, block_scales[piece] = _compensate(matrix[piece], feedback, weights, scale)
        packed[piece] = pack(codes)
    return Nvfp4(packed, block_scales, scale)


def _factors(moments: NDArray[np.floating[Any]], columns: int, damping: float) -> tuple[F32, F32]:
    """M f32 [in, in] and D f32 [in] of the damped moments. A Cholesky factor of the flipped matrix is flipped back."""
    if moments.shape != (columns, columns):
        raise ValueError(f"moments must be [{columns}, {columns}], not {list(moments.shape)}")
    if not np.isfinite(moments).all():
        raise ValueError("moments hold NaN or infinity")
    if not damping > 0:
        raise ValueError(f"damping must be above 0, not {damping}")
    mean = float(np.diagonal(moments).mean(dtype=np.float64)) if columns else 0.0
    if not mean > 0:
        raise ValueError("moments have no positive diagonal")
    damped: NDArray[np.float64] = (moments[::-1, ::-1] / mean).astype(np.float64, copy=False)
    damped[np.diag_indices(columns)] += damping
    try:
        cholesky_in_place(damped)
    except np.linalg.LinAlgError:
        raise ValueError("moments are not positive semidefinite, even with damping") from None
    factor = damped[::-1, ::-1]
    roots = np.diagonal(factor)
    feedback = np.empty(factor.shape, np.float32)
    np.divide(factor, roots, out=feedback, casting="same_kind")
    return feedback, np.square(roots).astype(np.float32)


def cholesky_in_place(matrix: NDArray[np.float64], block: int = 512) -> None:
    """Turn a symmetric matrix [n, n], of which the lower triangle is read, into its lower Cholesky factor.

    By blocks of columns, each from those before it: with OpenBLAS 0.3.31 `numpy.linalg.cholesky` crashes at 17,408
    columns, the width of a 27 B model's MLP.

    Raises:
        numpy.linalg.LinAlgError: the matrix is not positive definite.
    """
    for start in range(0, len(matrix), block):
        here = slice(start, min(start + block, len(matrix)))
        below = slice(here.stop, None)
        matrix[start:, here] -= matrix[start:, :start] @ matrix[here, :start].T
        corner = np.linalg.cholesky(matrix[here, here])
        matrix[below, here] = matrix[below, here] @ np.linalg.inv(corner).T
        matrix[here, here] = corner
        matrix[here, below] = 0


def _compensate(rows: F32, feedback: F32, weights: F32, global_scale: np.float32) -> tuple[U8, NDArray[Any]]:
    """Codes u8 [rows, in] and block scales E4M3 [rows, in / 16]; columns are worked on as contiguous rows."""
    columns = rows.shape[1]
    targets = rows.T.copy()
    errors, codes = np.empty_like(targets), np.empty(targets.shape, np.uint8)
    block_scales = np.empty((len(rows), columns // BLOCK), E4M3)
    for start in range(0, columns, _PANEL):
        stop = min(start + _PANEL, columns)
        for first in range(start, stop, BLOCK):
            last = first + BLOCK
            number = slice(first // BLOCK, last // BLOCK)
            found = best_block_scales(targets[first:last].T, weights[..., number], global_scale)
            block_scales[:, number] = found
            scales = found[:, 0].astype(np.float32) * global_scale
            for k in range(first, last):
                codes[k] = to_e2m1(targets[k] / scales)
                errors[k] = rows[:, k] - E2M1[codes[k]] * scales
                targets[k + 1 : last] += feedback[k, k + 1 : last, None] * errors[k]
            targets[last:stop] += feedback[first:last, last:stop].T @ errors[first:last]
        targets[stop:] += feedback[start:stop, stop:].T @ errors[start:stop]
    return np.ascontiguousarray(codes.T), block_scales
