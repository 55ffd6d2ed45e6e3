"""The MTP graph: one gated-attention layer over (embedding, hidden) pairs and the best next tokens.

x = fc(concat(norm(embedding of token t+1), norm(hidden of token t))) -> decoder layer -> mtp.norm -> head: predicts
token t+2. The row that feeds the next draft step is the one after `mtp.norm`: it takes the place of the base model's
hidden row, which is also taken after the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from edgellm.graph.builder import GraphBuilder
from edgellm.graph.decoder import add_norm, attention, head_part, mlp, norm_scale
from edgellm.graph.lowering.base import Lowering
from edgellm.graph.source import Part

DRAFT_TOP_K: Final = 4


def add_mtp(g: GraphBuilder, lowering: Lowering, draft_vocab: Sequence[int] | None = None) -> None:
    """Add the MTP layer to `g`, for one sequence.

    Inputs besides those of the attention form: input_ids i64 [1, S], hidden_in f32 [1, S, hidden], logit_rows i64 [R],
    cache mtp_k, mtp_v. Outputs: hidden_out f32 [1, S, hidden], topk_ids i64 [R, 4] and topk_logits f32 [R, 4], best
    first, log_norm f32 [R, 1]: a token's log-probability over the draft vocabulary is its logit minus log_norm.

    Args:
        draft_vocab: token ids the head may propose; all by default.
    """
    hidden = mtp_layer(g, lowering)
    rows = g.input("logit_rows", np.int64, ["R"])
    picked = g.op("Gather", [g.reshape(hidden, [-1, lowering.ops.source.spec.hidden]), rows], axis=0)
    _add_best(g, lowering, picked, draft_vocab)


def mtp_layer(g: GraphBuilder, lowering: Lowering) -> str:
    """What `add_mtp` adds, up to hidden_out, whose name it returns."""
    spec = lowering.ops.source.spec
    ids = g.input("input_ids", np.int64, [1, "S"])
    hidden_in = g.input("hidden_in", np.float32, [1, "S", spec.hidden])
    residual = mtp_pair(g, lowering, lowering.ops.embed(g, ids), hidden_in)
    name = "mtp.layers.0"
    residual, x = add_norm(g, lowering, residual, "", f"{name}.input_layernorm.weight")
    update = attention(g, lowering, f"{name}.self_attn", ("mtp_k", "mtp_v"), x)
    residual, x = add_norm(g, lowering, residual, update, f"{name}.post_attention_layernorm.weight")
    hidden = g.output("hidden_out", np.float32, [1, "S", spec.hidden])
    add_norm(g, lowering, residual, mlp(g, lowering, f"{name}.mlp", x), "mtp.norm.weight", hidden)
    return hidden


def mtp_pair(g: GraphBuilder, lowering: Lowering, embedded: str, hidden_in: str) -> str:
    """fc(concat(norm(embedded), norm(hidden_in))), the input of the MTP layer: [1, S, hidden]."""
    ops = lowering.ops
    pair = [
        ops.norm(g, embedded, norm_scale(g, ops.source, "mtp.pre_fc_norm_embedding.weight")),
        ops.norm(g, hidden_in, norm_scale(g, ops.source, "mtp.pre_fc_norm_hidden.weight")),
    ]
    both = g.op("Concat", pair, axis=-1)
    return ops.project(g, both, "mtp.fc", [Part("mtp.fc.weight", ops.source.spec.hidden)])[0]


def _add_best(g: GraphBuilder, lowering: Lowering, rows: str, draft_vocab: Sequence[int] | None) -> None:
    source = lowering.ops.source
    head = head_part(source)
    if draft_vocab is not None:
        index = np.asarray(draft_vocab, dtype=np.intp)
        head = Part(head.tensor, len(index), index)
    logits = lowering.ops.logits(g, rows, head)
    best = g.output("topk_logits", np.float32, ["R", DRAFT_TOP_K])
    ids = g.output("topk_ids", np.int64, ["R", DRAFT_TOP_K])
    if draft_vocab is None:
        g.ops("TopK", [logits, g.const([DRAFT_TOP_K])], [best, ids])
    else:
        places = g.ops("TopK", [logits, g.const([DRAFT_TOP_K])], [best, "topk_places"])[1]
        table = g.weight("mtp.draft_vocab", lambda: np.asarray(draft_vocab, dtype=np.int64))
        g.op("Gather", [table, places], output=ids)
    g.op("ReduceLogSumExp", [logits, g.const([-1])], keepdims=1, output=g.output("log_norm", np.float32, ["R", 1]))
