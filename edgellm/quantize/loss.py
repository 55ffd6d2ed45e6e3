"""What quantizing lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgellm.checkpoint.nvfp4 import Nvfp4
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.weights import Weight
from edgellm.quantize.rounding import row_pieces


@dataclass(frozen=True, slots=True)
class Error:
    """What one matrix lost."""

    module: str
    relative: float  # root of (sum of squared errors / sum of squared weights)
    output: float | None = None  # the same of the module's outputs on the calibration texts; with error feedback only


def relative_error(plain: Weight, made: Weight | Nvfp4) -> float:
    """`Error.relative` of a matrix; 0 for one of zeros."""
    squares = lost = 0.0
    for rows in row_pieces(plain.shape):
        values = plain.to_float32(rows)
        squares += float(np.square(values, dtype=np.float64).sum())
        lost += float(np.square(values - made.to_float32(rows), dtype=np.float64).sum())
    return float((lost / squares) ** 0.5) if squares else 0.0


def weight_errors(source: Checkpoint, quantized: Checkpoint) -> list[Error]:
    """Of the matrices that are NVFP4 in `quantized`, whoever wrote it."""
    return [
        Error(name.removesuffix(".weight"), relative_error(source.weight(name), quantized.weight(name)))
        for name in quantized.matrices
        if quantized.kind(name) == "nvfp4"
    ]
