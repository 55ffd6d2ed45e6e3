"""Counting the weight bytes of a decode step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgellm.bench.weights import decode_weight_bytes


def test_counts_matrix_weights_and_not_the_embedding(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((8, 4), np.float32), "w")
    table = numpy_helper.from_array(np.zeros((100, 8), np.float32), "embed")
    nodes = [helper.make_node("Gather", ["embed", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    model = helper.make_model(helper.make_graph(nodes, "g", [ids], [out], [weight, table]))
    onnx.save(model, tmp_path / "g.onnx")
    assert decode_weight_bytes(tmp_path / "g.onnx") == 8 * 4 * 4
