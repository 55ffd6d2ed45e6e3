"""The commit graph: applies an accepted path from the capsules to the recurrent state, in place.

S = e^(G_leaf) S0 + sum over accepted nodes j of e^(G_leaf - G_j) k_j u_j^T (source: the WY form, see `delta`).
"""

from __future__ import annotations

import numpy as np

from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.builder import GraphBuilder


def build_commit(g: GraphBuilder, model: ModelSpec) -> None:
    """Inputs accept f32 [1,1,1,S,1], leaf i64 [1], conv_rows i64 [K-1], capsules and states of every linear layer."""
    spec = model.linear
    ratio, kernel = spec.value_heads // spec.key_heads, spec.conv_kernel
    accept = g.input("accept", np.float32, [1, 1, 1, "S", 1])
    leaf = g.input("leaf", np.int64, [1])
    conv_rows = g.input("conv_rows", np.int64, [kernel - 1])
    for i in model.linear_layers:
        u = g.input(f"cap_d_{i}", np.float32, [1, spec.key_heads, ratio, "S", spec.value_dim])
        k = g.input(f"cap_k_{i}", np.float32, [1, spec.key_heads, 1, "S", spec.key_dim])
        total = g.input(f"cap_g_{i}", np.float32, [1, spec.key_heads, ratio, "S", 1])
        raw = g.input(f"cap_c_{i}", np.float32, [1, "S", spec.conv_channels])
        state_shape = [1, spec.value_heads, spec.key_dim, spec.value_dim]
        conv_shape = [1, kernel - 1, spec.conv_channels]
        conv, state = g.input(f"conv_{i}", np.float32, conv_shape), g.input(f"state_{i}", np.float32, state_shape)
        last = g.op("Gather", [total, leaf], axis=3)
        # Nodes off the path may lie deeper than the leaf: their exponent is clamped before the mask removes them.
        weight = g.op("Mul", [g.op("Exp", [g.op("Min", [g.op("Sub", [last, total]), g.const(0, np.float32)])]), accept])
        update = g.op("MatMul", [g.op("Transpose", [k], perm=[0, 1, 2, 4, 3]), g.op("Mul", [u, weight])])
        old = g.reshape(state, [0, spec.key_heads, ratio, spec.key_dim, spec.value_dim])
        new = g.op("Add", [g.op("Mul", [old, g.op("Exp", [last])]), update])
        g.op("Reshape", [new, g.const(state_shape)], output=g.output(f"state_out_{i}", np.float32, state_shape))
        rows = g.op("Concat", [conv, raw], axis=1)
        g.op("Gather", [rows, conv_rows], axis=1, output=g.output(f"conv_out_{i}", np.float32, conv_shape))
