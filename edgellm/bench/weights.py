"""Bytes of weights that one decode step must read, counted in the graph that runs it."""

from __future__ import annotations

from pathlib import Path

import onnx


def decode_weight_bytes(graph: Path) -> int:
    """Sum of the initializers that matrix products of `graph` read.

    The embedding table is not counted (a step reads one row of it) unless it is also the tied output head.

    Args:
        graph: an ONNX file with external data; only the graph itself is read.
    """
    model = onnx.load(graph, load_external_data=False)
    used = {
        name for node in model.graph.node if node.op_type in ("MatMul", "MatMulNBits", "Gemm") for name in node.input
    }
    return sum(_tensor_bytes(init) for init in model.graph.initializer if init.name in used)


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    for entry in tensor.external_data:
        if entry.key == "length":
            return int(entry.value)
    return len(tensor.raw_data)
