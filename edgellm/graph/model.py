"""The decoder as ONNX Runtime graphs: `advance` (a chain, committed in place) and `verify` (a tree, read-only)."""

from __future__ import annotations

import numpy as np

from edgellm.checkpoint.reader import Checkpoint
from edgellm.graph import delta
from edgellm.graph.builder import Dim, GraphBuilder
from edgellm.graph.layers import Layers
from edgellm.graph.rope import rope_tables


def build_decoder(g: GraphBuilder, checkpoint: Checkpoint, layers: Layers, *, tree: bool, positions: int) -> None:
    """Add inputs, nodes and outputs of one decoder graph (names and shapes: see the package docstring)."""
    spec = checkpoint.spec
    batch: Dim = 1 if tree else "B"
    ids = g.input("input_ids", np.int64, [batch, "S"])
    position_ids = g.input("positions", np.int64, [batch, "S"])
    attention = attention_inputs(g, batch, bias=tree)
    rope = rope_tables(g, spec.attention, positions)
    index = delta.TreeInputs.declare(g, spec.linear) if tree else None
    rows = g.input("logit_rows", np.int64, ["R"])
    residual = layers.embed(ids)
    update = ""
    for i, kind in enumerate(spec.layers):
        name = f"layers.{i}"
        residual, x = layers.add_norm(residual, update, f"{name}.input_layernorm.weight")
        if kind == "full_attention":
            update = layers.attention(
                x, f"{name}.self_attn", position_ids, rope, attention, layers.kv_inputs(f"k_{i}", f"v_{i}", batch)
            )
        elif index is None:
            update = delta.chain(g, layers, x, i)
        else:
            update = delta.tree(g, layers, x, i, index)
        residual, x = layers.add_norm(residual, update, f"{name}.post_attention_layernorm.weight")
        update = layers.mlp(x, f"{name}.mlp")
    hidden = g.output("hidden", np.float32, [batch, "S", spec.hidden])
    layers.add_norm(residual, update, "norm.weight", output=hidden)
    picked = g.op("Gather", [g.reshape(hidden, [-1, spec.hidden]), rows], axis=0)
    layers.head(picked, output=g.output("logits", np.float32, ["R", spec.vocab]))


def attention_inputs(g: GraphBuilder, batch: Dim, *, bias: bool) -> list[str]:
    """The trailing inputs of GroupQueryAttention: seqlens_k, total_sequence_length and, for trees, the bias."""
    names = [g.input("seqlens_k", np.int32, [batch]), g.input("total_seqlen", np.int32, [])]
    if bias:
        names += ["", "", "", g.input("attn_bias", np.float32, [batch, 1, "S", "T"])]
    return names
