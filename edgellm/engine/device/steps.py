"""The programs of a device: one step of the decoder or of the MTP layer, as operations on fixed buffers.

A step is made of the model's segments (engines) and, between them, the kernels that mix tokens. There are two kinds:
over a tree, which reads the committed state and leaves capsules and draft rows, and over a prefill chunk, which commits
as it goes. What must stay true: a program touches the slot it was made for, the KV pool, and its own work buffers; what
changes from step to step (tokens, parents, the control block, the path accepted before) is uploaded by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgellm.engine.device.attention import ChainAttention, TreeAttention
from edgellm.engine.device.base import Buffer, Copy, Launch, Operation, Run
from edgellm.engine.device.memory import Capsules, SlotMemory
from edgellm.engine.device.rows import Mixed, Model, Rows, through_layers
from edgellm.engine.device.stitch import Network, stitch
from edgellm.kernels.gdn import GDN_PREFILL, GDN_PREP, GDN_PREP_CHAIN, GDN_TREE_VERIFY
from edgellm.kernels.topk import SAMPLE_TOPK
from edgellm.kernels.tree import TREE_BUILD


class TreeStep:
    """One step of the decoder over a tree of up to `count` nodes: commits the path accepted before, reads the state.

    Args:
        engine: that has the whole model with its kernels as plugins; None: segments and kernels one by one.
    """

    def __init__(self, model: Model, count: int, engine: str | None = None) -> None:
        self._engine = engine
        self.rows = Rows(model, count, count)
        self._model = model
        self._sizes = model.sizes(count, count)
        self._attention = TreeAttention(model, self.rows, self._sizes)
        self._ancestors = model.zeros(count, self._sizes.words, dtype=np.int32)
        self._depths = model.zeros(count, dtype=np.int32)
        model.device.upload(self.rows.logit_rows, np.arange(count))

    def operations(self, slot: SlotMemory, left: Capsules, made: Capsules) -> list[Operation]:
        """Of the step over `slot`; `left` by the step before, `made` by this one."""
        rows, sizes = self.rows, self._sizes
        build = {
            "parents": rows.parents,
            "control": slot.control,
            "ancestors": self._ancestors,
            "depths": self._depths,
            "positions": rows.positions,
        }
        return [
            Launch(TREE_BUILD, sizes, build),
            *(self.inner(slot, left, made) if self._engine is None else [self._whole(self._engine, slot, left, made)]),
            Launch(SAMPLE_TOPK, sizes, {"logits": rows.logits, "ids": rows.best, "values": rows.best_values}),
        ]

    def network(self, slot: SlotMemory, left: Capsules, made: Capsules) -> Network:
        """What an engine with plugins is made of."""
        return stitch(self.inner(slot, left, made), [slot.hidden[: self._sizes.rows]])

    def _whole(self, engine: str, slot: SlotMemory, left: Capsules, made: Capsules) -> Run:
        network = self.network(slot, left, made)
        return Run(engine, {**network.inputs, **network.outputs})

    def inner(self, slot: SlotMemory, left: Capsules, made: Capsules) -> list[Operation]:
        """The model alone: from tokens, parents and positions to logits."""
        rows, spec, count = self.rows, self._model.spec, self._sizes.rows
        attention = {
            "control": slot.control,
            "page_table": slot.page_table,
            "ancestors": self._ancestors,
        }

        def mix(layer: int, projections: Mapping[str, Buffer]) -> Mixed:
            if spec.layers[layer] == "full_attention":
                part = spec.full_layers.index(layer)
                tails = {"tail_k": slot.tail_k[part][:count], "tail_v": slot.tail_v[part][:count]}
                return self._attention.mix(str(layer), part, projections, {**attention, **tails})
            return self._delta(layer, projections, slot, left, made)

        return through_layers(self._model, rows, slot.hidden[:count], mix)

    def _delta(self, layer: int, made: Mapping[str, Buffer], slot: SlotMemory, left: Capsules, new: Capsules) -> Mixed:
        rows, at = self.rows, self._model.spec.linear_layers.index(layer)
        prep = {
            **_delta_inputs(self._model, layer, made),
            "parents": rows.parents,
            "accepted": slot.accepted,
            "control": slot.control,
            "conv_state": slot.state.conv[at],
            "cap_c": slot.conv_rows[at],
            **rows.delta,
        }
        verify = {
            **rows.delta,
            "ancestors": self._ancestors,
            "accepted": slot.accepted,
            "control": slot.control,
            "cap_k": left.k[at],
            "cap_u": left.u[at],
            "cap_g": left.g[at],
            "state": slot.state.state[at],
            "y": rows.y,
            "new_cap_k": new.k[at],
            "new_cap_u": new.u[at],
            "new_cap_g": new.g[at],
        }
        return rows.y, [Launch(GDN_PREP, self._sizes, prep), Launch(GDN_TREE_VERIFY, self._sizes, verify)]


def _delta_inputs(model: Model, layer: int, made: Mapping[str, Buffer]) -> dict[str, Buffer]:
    constants = {name: model.constants[f"{name}.{layer}"] for name in ("taps", "decay", "dt_bias")}
    return {"qkv": made["qkv"], "a": made["a"], "b": made["b"], **constants}


class PrefillStep:
    """One step of the decoder over up to `count` consecutive tokens, committed in place."""

    def __init__(self, model: Model, count: int) -> None:
        self.rows = Rows(model, count, 1)
        # Row 0 is for the hidden row of the token before the chunk: the MTP layer's input is rows 0 … count - 1. The
        # engine makes the others in a buffer of their own: it wants aligned addresses.
        self.hidden = model.zeros(count + 1, model.spec.hidden)
        self._made = model.zeros(count, model.spec.hidden)
        self.attention = ChainAttention(model, self.rows, model.sizes(count, count))
        self._model = model
        self._sizes = model.sizes(count, count)
        self._scoring = replace(self._sizes, rows=1, tail=1)

    def operations(self, slot: SlotMemory) -> list[Operation]:
        """Of the step over `slot`."""
        rows, spec = self.rows, self._model.spec

        def mix(layer: int, made: Mapping[str, Buffer]) -> Mixed:
            if spec.layers[layer] == "full_attention":
                part = spec.full_layers.index(layer)
                return self.attention.mix(str(layer), part, made, slot.control, slot.page_table)
            at = spec.linear_layers.index(layer)
            state = {"conv_state": slot.state.conv[at], "control": slot.control}
            prep = {**_delta_inputs(self._model, layer, made), **state, **rows.delta}
            scan = {**rows.delta, **state, "qkv": made["qkv"], "state": slot.state.state[at], "y": rows.y}
            return rows.y, [Launch(GDN_PREP_CHAIN, self._sizes, prep), Launch(GDN_PREFILL, self._sizes, scan)]

        best = {"logits": rows.logits, "ids": rows.best, "values": rows.best_values}
        return [
            *through_layers(self._model, rows, self._made, mix),
            Copy(self._made, self.hidden[1:]),
            Launch(SAMPLE_TOPK, self._scoring, best),
        ]
