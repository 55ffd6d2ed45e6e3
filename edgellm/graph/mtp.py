"""The MTP graph: one gated-attention layer over (embedding, hidden) pairs, and the best next tokens of each row.

x = fc(concat(norm(embedding of token t+1), norm(hidden of token t))) -> decoder layer -> mtp.norm -> head. The row
fed to the next draft step is the one after `mtp.norm`, as the layer's input is the base model's normed hidden.
"""

from __future__ import annotations

import numpy as np

from edgellm.graph.builder import GraphBuilder
from edgellm.graph.layers import Layers
from edgellm.graph.model import attention_inputs
from edgellm.graph.rope import rope_tables

DRAFT_TOP_K = 4


def build_mtp(g: GraphBuilder, layers: Layers, *, positions: int) -> None:
    """Inputs and outputs: see the package docstring."""
    spec = layers.checkpoint.spec
    ids = g.input("input_ids", np.int64, [1, "S"])
    hidden_in = g.input("hidden_in", np.float32, [1, "S", spec.hidden])
    position_ids = g.input("positions", np.int64, [1, "S"])
    trailing = attention_inputs(g, 1, bias=True)
    rows = g.input("logit_rows", np.int64, ["R"])
    both = g.op(
        "Concat",
        [
            layers.norm(layers.embed(ids), "mtp.pre_fc_norm_embedding.weight"),
            layers.norm(hidden_in, "mtp.pre_fc_norm_hidden.weight"),
        ],
        axis=-1,
    )
    residual = layers.linear(both, "mtp.fc", ["mtp.fc.weight"], spec.hidden, 2 * spec.hidden)
    name = "mtp.layers.0"
    rope = rope_tables(g, spec.attention, positions)
    x = layers.norm(residual, f"{name}.input_layernorm.weight")
    update = layers.attention(
        x, f"{name}.self_attn", position_ids, rope, trailing, layers.kv_inputs("mtp_k", "mtp_v", 1)
    )
    residual, x = layers.add_norm(residual, update, f"{name}.post_attention_layernorm.weight")
    hidden_out = g.output("hidden_out", np.float32, [1, "S", spec.hidden])
    layers.add_norm(residual, layers.mlp(x, f"{name}.mlp"), "mtp.norm.weight", output=hidden_out)
    picked = g.op("Gather", [g.reshape(hidden_out, [-1, spec.hidden]), rows], axis=0)
    logits = layers.head(picked)
    names = [
        g.output("topk_logits", np.float32, ["R", DRAFT_TOP_K]),
        g.output("topk_ids", np.int64, ["R", DRAFT_TOP_K]),
    ]
    g.ops("TopK", [logits, g.const([DRAFT_TOP_K])], names, axis=-1)
    g.op("ReduceLogSumExp", [logits, g.const([-1])], keepdims=1, output=g.output("log_norm", np.float32, ["R", 1]))
