"""The commit graph: applies an accepted path of a verified tree to the recurrent states, in place.

S = e^(G_leaf) S0 + sum over accepted nodes j of e^(G_leaf - G_j) k_j u_j^T (see `tree`).
"""

from __future__ import annotations

import numpy as np

from edgellm.checkpoint.spec import LinearSpec, ModelSpec
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.tree import declare_state


def add_commit(g: GraphBuilder, model: ModelSpec) -> None:
    """Add the commit of every DeltaNet layer to `g`, in standard operators.

    Inputs: accept f32 [1, 1, 1, S, 1] (1 for nodes on the path, else 0), leaf i64 [1] (last node of the path),
    conv_rows i64 [K-1] (rows of concat(conv state, cap_c) that become the conv state); per layer the capsule and state.
    Outputs: conv_out_{i}, state_out_{i}, to be bound to the same buffers as conv_{i}, state_{i}.
    """
    accept = g.input("accept", np.float32, [1, 1, 1, "S", 1])
    leaf = g.input("leaf", np.int64, [1])
    conv_rows = g.input("conv_rows", np.int64, [model.linear.conv_kernel - 1])
    for layer in model.linear_layers:
        _add_layer(g, model.linear, layer, accept, leaf, conv_rows)


def _add_layer(g: GraphBuilder, spec: LinearSpec, layer: int, accept: str, leaf: str, conv_rows: str) -> None:
    heads, ratio = spec.key_heads, spec.value_heads // spec.key_heads
    u = g.input(f"cap_d_{layer}", np.float32, [1, heads, ratio, "S", spec.value_dim])
    k = g.input(f"cap_k_{layer}", np.float32, [1, heads, 1, "S", spec.key_dim])
    total = g.input(f"cap_g_{layer}", np.float32, [1, heads, ratio, "S", 1])
    raw = g.input(f"cap_c_{layer}", np.float32, [1, "S", spec.conv_channels])
    conv, state = declare_state(g, spec, layer, 1)
    last = g.op("Gather", [total, leaf], axis=3)
    # A node off the path may have decayed more than the leaf; without Min its exponential could be inf, and inf * 0.
    decay = g.op("Exp", [g.op("Min", [g.op("Sub", [last, total]), g.const(0, np.float32)])])
    weighted = g.op("Mul", [u, g.op("Mul", [decay, accept])])
    update = g.op("MatMul", [g.op("Transpose", [k], perm=[0, 1, 2, 4, 3]), weighted])  # [1, Hk, r, dk, dv]
    shape = [1, spec.value_heads, spec.key_dim, spec.value_dim]
    kept = g.op("Mul", [state, g.reshape(g.op("Exp", [last]), [1, spec.value_heads, 1, 1])])
    g.op("Add", [kept, g.reshape(update, shape)], output=g.output(f"state_out_{layer}", np.float32, shape))
    conv_out = g.output(f"conv_out_{layer}", np.float32, [1, spec.conv_kernel - 1, spec.conv_channels])
    g.op("Gather", [g.op("Concat", [conv, raw], axis=1), conv_rows], axis=1, output=conv_out)
