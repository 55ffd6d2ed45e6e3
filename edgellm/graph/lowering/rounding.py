"""Values rounded as a device's number formats hold them, kept as float32."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgellm.checkpoint.nvfp4 import BLOCK, E2M1_MAX, E4M3_MAX
from edgellm.graph.builder import GraphBuilder


def rounded_to_e4m3(g: GraphBuilder, x: str, scale: float) -> str:
    """E4M3(x / scale) · scale; what is too large becomes ±448 · scale."""
    factor = g.const(scale, np.float32)
    return g.op("Mul", [_e4m3(g, g.op("Div", [x, factor])), factor])


def rounded_to_nvfp4(g: GraphBuilder, x: str, scale: np.float32) -> str:
    """The rows' blocks of 16 rounded to nearest, ties to the even mantissa, with the global scale `scale`.

    A block's scale is E4M3(amax / (6 · scale)), as `quantize.rounding.round_to_nearest` has it.
    """
    blocks = g.reshape(x, [-1, BLOCK])
    amax = g.op("ReduceMax", [g.op("Abs", [blocks]), g.const([-1])])
    quotient = g.op("Div", [amax, g.const(np.float32(E2M1_MAX) * scale, np.float32)])
    clipped = g.op("Clip", [quotient, g.const(2.0**-9, np.float32), g.const(E4M3_MAX, np.float32)])
    scales = g.op("Mul", [_e4m3(g, clipped), g.const(scale, np.float32)])
    ratio = g.op("Div", [blocks, scales])
    inside = g.op("Clip", [ratio, g.const(-E2M1_MAX, np.float32), g.const(E2M1_MAX, np.float32)])
    # Steps of the grid 0, ½, 1, 1½, 2, 3, 4, 6; Round takes ties to even.
    size = g.op("Abs", [inside])
    large = g.op("Where", [_below(g, size, 4), g.const(1, np.float32), g.const(2, np.float32)])
    step = g.op("Where", [_below(g, size, 2), g.const(0.5, np.float32), large])
    rounded = g.op("Mul", [g.op("Round", [g.op("Div", [inside, step])]), step])
    return g.op("Reshape", [g.op("Mul", [rounded, scales]), g.op("Shape", [x])])


def _below(g: GraphBuilder, x: str, limit: float) -> str:
    return g.op("Less", [x, g.const(limit, np.float32)])


def _e4m3(g: GraphBuilder, x: str) -> str:
    return g.op("Cast", [g.op("Cast", [x], to=TensorProto.FLOAT8E4M3FN)], to=TensorProto.FLOAT)
