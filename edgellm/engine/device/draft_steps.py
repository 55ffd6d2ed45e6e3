"""The programs of the MTP layer: a step over draft nodes, and one over a prefill chunk. See `steps`."""

from __future__ import annotations

import numpy as np

from edgellm.engine.device.attention import TreeAttention
from edgellm.engine.device.base import Buffer, Launch, Operation, Run
from edgellm.engine.device.memory import DRAFT_TAIL, SlotMemory
from edgellm.engine.device.rows import Model, Rows, embed, flat, score
from edgellm.engine.device.steps import PrefillStep
from edgellm.graph.segments import MTP_IN, MTP_OUT, side_of
from edgellm.kernels.topk import DRAFT_TOPK
from edgellm.kernels.tree import TREE_BUILD


class DraftStep:
    """One step of the MTP layer over up to `count` rows of its tail: waiting tokens, the root, draft nodes."""

    def __init__(self, model: Model, count: int) -> None:
        self.rows = Rows(model, count, count)
        self.hidden_rows = model.zeros(count, dtype=np.int64)
        self.hidden = model.zeros(count, model.spec.hidden)
        self._model = model
        self._sizes = model.sizes(count, DRAFT_TAIL)
        self._attention = TreeAttention(model, self.rows, self._sizes)
        model.device.upload(self.rows.logit_rows, np.arange(count))

    def operations(self, slot: SlotMemory) -> list[Operation]:
        """Of the step over `slot`."""
        rows = self.rows
        build = {
            "parents": rows.parents,
            "control": slot.draft_control,
            "ancestors": slot.ancestors,
            "depths": slot.depths,
            "positions": rows.positions,
        }
        attention = {
            "control": slot.draft_control,
            "page_table": slot.page_table,
            "ancestors": slot.ancestors,
            "tail_k": slot.draft_k[0],
            "tail_v": slot.draft_v[0],
        }
        run, made = _mtp_in(rows, slot.hidden_pool, self.hidden_rows)
        part = len(self._model.spec.full_layers)
        context, launches = self._attention.mix("mtp", part, made, attention)
        end = {
            "residual": rows.residual[0],
            "mixed": context.reshape(1, *context.shape),
            "side": rows.projections("full_attention", 0)[side_of(self._model.spec, None)],
            "hidden": self.hidden.reshape(1, *self.hidden.shape),
        }
        best = {
            "logits": rows.logits,
            "ids": rows.best,
            "values": rows.best_values,
            "log_norm": rows.log_norm,
        }
        return [
            Launch(TREE_BUILD, self._sizes, build),
            embed(rows),
            run,
            *launches,
            Run(MTP_OUT, end),
            score(rows, self.hidden),
            Launch(DRAFT_TOPK, self._sizes, best),
        ]


class DraftPrefillStep:
    """The MTP layer's rows of a prefill chunk, from the hidden rows that the decoder's step left. Nothing is scored:
    only keys and values are wanted of committed tokens."""

    def __init__(self, model: Model, decoder: PrefillStep) -> None:
        count = decoder.rows.positions.shape[0]
        self._model, self._decoder = model, decoder
        self._hidden_rows = model.zeros(count, dtype=np.int64)
        model.device.upload(self._hidden_rows, np.arange(count))

    def operations(self, slot: SlotMemory) -> list[Operation]:
        """Of the step over `slot`; its tokens are those of the decoder's step."""
        decoder = self._decoder
        run, made = _mtp_in(decoder.rows, decoder.hidden, self._hidden_rows)
        part = len(self._model.spec.full_layers)
        return [run, *decoder.attention.write("mtp", part, made, slot.draft_control, slot.page_table)]


def _mtp_in(rows: Rows, pool: Buffer, hidden_rows: Buffer) -> tuple[Run, dict[str, Buffer]]:
    made = rows.projections("full_attention", 0)
    tensors = {
        "embedded": rows.embedded,
        "hidden_pool": pool,
        "hidden_rows": hidden_rows,
        "residual_out": rows.residual[0],
        **made,
    }
    return Run(MTP_IN, tensors), {name: flat(value) for name, value in made.items()}
