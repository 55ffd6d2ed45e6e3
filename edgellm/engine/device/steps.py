"""The programs of a device: one step of the decoder or of the MTP layer, as operations on fixed buffers.

A step is made of the model's segments (engines) and, between them, the kernels that mix tokens. There are two kinds:
over a tree, which reads the committed state and leaves capsules and draft rows, and over a prefill chunk, which commits
as it goes. What must stay true: a program touches the slot it was made for, the KV pool, and its own work buffers; what
changes from step to step (tokens, parents, the control block, the path accepted before) is uploaded by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Buffer, Device, Launch, Operation, Run
from edgellm.engine.device.memory import FP8, IO_DTYPES, Capsules, Layout, Pool, SlotMemory
from edgellm.engine.device.stitch import Network, stitch
from edgellm.graph.mtp import DRAFT_TOP_K
from edgellm.graph.segments import EMBED, HEAD, mixer_widths, segment_name, side_of
from edgellm.kernels.attention import ATTN_PREFILL, ATTN_PREP, KV_WRITE, TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.gdn import GDN_PREFILL, GDN_PREP, GDN_PREP_CHAIN, GDN_TREE_VERIFY
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.topk import SAMPLE_TOPK
from edgellm.kernels.tree import TREE_BUILD

# The query heads of one row make blocks of a single warp, of which a multiprocessor holds several.
_SINGLE: Final = 3
_MOST_SPLITS: Final = 64

Mixed = tuple[Buffer, list[Operation]]  # the result of a layer's mixing and what makes it


@dataclass(frozen=True, slots=True)
class Model:
    """What all steps share."""

    device: Device
    spec: ModelSpec
    layout: Layout
    constants: Mapping[str, Buffer]
    pool: Pool
    splits: int  # parts that the context of a tree is cut into

    @property
    def tokens(self) -> int:
        """Tokens that a slot can hold; positions are below it."""
        return self.layout.max_pages * self.layout.page

    def sizes(self, rows: int, tail: int) -> Sizes:
        """Sizes of the kernels of a step of `rows` rows that sees `tail` draft rows."""
        layout = self.layout
        return Sizes.of(
            self.spec,
            io=layout.io,
            rows=rows,
            tail=tail,
            capsule=layout.nodes,
            page=layout.page,
            pages=layout.pages,
            max_pages=layout.max_pages,
            splits=self.splits if rows > 1 else min(_SINGLE * self.splits, _MOST_SPLITS),
            top_k=DRAFT_TOP_K,
        )

    def zeros(self, *shape: int, dtype: DTypeLike | None = None) -> Buffer:
        """New memory; of the activations' dtype by default."""
        return self.device.zeros(shape, IO_DTYPES[self.layout.io] if dtype is None else dtype)


class Rows:
    """What steps of `rows` tokens read and make, whatever they are steps of. Two sets of projections take turns: a
    segment writes its own while it reads ``side`` of the one before."""

    def __init__(self, model: Model, rows: int, scored: int) -> None:
        spec = model.spec
        self.input_ids = model.zeros(1, rows, dtype=np.int64)
        self.parents = model.zeros(rows, dtype=np.int32)
        self.positions = model.zeros(rows, dtype=np.int32)
        self.logit_rows = model.zeros(scored, dtype=np.int64)
        self.embedded = model.zeros(1, rows, spec.hidden)
        self.residual = (model.zeros(1, rows, spec.hidden), model.zeros(1, rows, spec.hidden))
        self.logits = model.zeros(scored, spec.vocab, dtype=np.float32)
        self.best = model.zeros(scored, DRAFT_TOP_K, dtype=np.int32)
        self.best_values = model.zeros(scored, DRAFT_TOP_K, dtype=np.float32)
        self.log_norm = model.zeros(scored, 1, dtype=np.float32)
        kinds: dict[str, int | None] = {spec.layers[layer]: layer for layer in range(len(spec.layers))}
        if model.layout.mtp:
            kinds.setdefault("full_attention", None)
        self._projections = [
            {kind: _named(model, rows, mixer_widths(spec, layer)) for kind, layer in kinds.items()} for _ in range(2)
        ]
        a, d = spec.attention, spec.linear
        self.q_rotated = model.zeros(rows, a.heads, a.head_dim)
        self.context = model.zeros(rows, a.heads * a.head_dim)
        self.delta = {
            "q": model.zeros(rows, d.key_heads, d.key_dim),
            "k": model.zeros(rows, d.key_heads, d.key_dim),
            "v": model.zeros(rows, d.value_heads, d.value_dim),
            "log_decay": model.zeros(rows, d.value_heads, dtype=np.float32),
            "beta": model.zeros(rows, d.value_heads, dtype=np.float32),
        }
        self.y = model.zeros(rows, d.value_heads, d.value_dim)

    def projections(self, kind: str, turn: int) -> dict[str, Buffer]:
        """What a segment makes for the mixing of a layer of `kind`."""
        return self._projections[turn % 2][kind]


def _named(model: Model, rows: int, widths: Mapping[str, int]) -> dict[str, Buffer]:
    return {name: model.zeros(1, rows, width) for name, width in widths.items()}


def through_layers(
    model: Model, rows: Rows, hidden: Buffer, mix: Callable[[int, Mapping[str, Buffer]], Mixed]
) -> list[Operation]:
    """All segments of the decoder with `mix` between them; `hidden` gets the rows [S, H] after the final norm."""
    spec = model.spec
    made, residual = rows.projections(spec.layers[0], 0), rows.embedded
    operations: list[Operation] = [embed(rows), Run(segment_name(0), {"residual": residual, **made})]
    for layer in range(len(spec.layers)):
        mixed, launches = mix(layer, {name: flat(value) for name, value in made.items()})
        tensors = {
            "residual": residual,
            "mixed": mixed.reshape(1, mixed.shape[0], -1),
            "side": made[side_of(spec, layer)],
        }
        if layer + 1 < len(spec.layers):
            made = rows.projections(spec.layers[layer + 1], layer + 1)
            residual = rows.residual[layer % 2]
            tensors |= {"residual_out": residual, **made}
        else:
            tensors |= {"hidden": hidden.reshape(1, *hidden.shape)}
        operations += [*launches, Run(segment_name(layer + 1), tensors)]
    return [*operations, score(rows, hidden)]


def embed(rows: Rows) -> Run:
    """The embedding of a step's tokens."""
    return Run(EMBED, {"input_ids": rows.input_ids, "embedded": rows.embedded})


def score(rows: Rows, hidden: Buffer) -> Run:
    """Logits of the rows of `hidden` [S, H] that are wanted."""
    tensors = {"hidden": hidden.reshape(1, *hidden.shape), "logit_rows": rows.logit_rows, "logits": rows.logits}
    return Run(HEAD, tensors)


def flat(value: Buffer) -> Buffer:
    """[1, S, width] as [S, width]."""
    return value.reshape(*value.shape[1:])


class TreeAttention:
    """Attention of tree rows over a slot's pages and the draft rows behind them."""

    def __init__(self, model: Model, rows: Rows, sizes: Sizes) -> None:
        a, count = model.spec.attention, sizes.rows
        self._model, self._rows, self._sizes = model, rows, sizes
        self._part_o = model.zeros(sizes.splits, a.kv_heads, count * sizes.group, a.head_dim, dtype=np.float32)
        self._part_ml = model.zeros(sizes.splits, a.kv_heads, count * sizes.group, 2, dtype=np.float32)

    def mix(
        self,
        key: str,
        part: int,
        made: Mapping[str, Buffer],
        slot: Mapping[str, Buffer],
    ) -> Mixed:
        """Args:
        key: of the layer's constants.
        part: the layer in the pool.
        slot: control, page_table, tail_k, tail_v, ancestors.
        """
        rows, sizes, constants = self._rows, self._sizes, self._model.constants
        tails = {name: slot[name] for name in ("tail_k", "tail_v")}
        shared = {"control": slot["control"], "kv_scale": constants[f"kv_scale.{key}"], **tails}
        parts = {"part_o": self._part_o, "part_ml": self._part_ml}
        pages = {"k_pages": self._model.pool.k[part], "v_pages": self._model.pool.v[part]}
        attend = {
            "q": rows.q_rotated,
            "page_table": slot["page_table"],
            "ancestors": slot["ancestors"],
            **pages,
            **shared,
            **parts,
        }
        return rows.context, [
            attention_prep(self._model, rows, sizes, key, made, shared),
            Launch(TREE_ATTN_PARTIAL, sizes, attend),
            Launch(TREE_ATTN_REDUCE, sizes, {**parts, "context": rows.context}),
        ]


def attention_prep(
    model: Model, rows: Rows, sizes: Sizes, key: str, made: Mapping[str, Buffer], shared: Mapping[str, Buffer]
) -> Launch:
    """Norms, RoPE and the FP8 rows of a layer."""
    constants = model.constants
    tensors = {
        **{name: made[name] for name in ("q", "k", "v")},
        "q_norm": constants[f"q_norm.{key}"],
        "k_norm": constants[f"k_norm.{key}"],
        "cos": constants["cos"][: sizes.positions],
        "sin": constants["sin"][: sizes.positions],
        "position_ids": rows.positions,
        "q_rotated": rows.q_rotated,
        **shared,
    }
    return Launch(ATTN_PREP, sizes, tensors)


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


class ChainAttention:
    """Attention of a prefill chunk: its rows go to the pages first."""

    def __init__(self, model: Model, rows: Rows, sizes: Sizes) -> None:
        a = model.spec.attention
        self._model, self._rows, self._sizes = model, rows, sizes
        self._new_k = model.zeros(sizes.rows, a.kv_heads, a.head_dim, dtype=FP8)
        self._new_v = model.zeros(sizes.rows, a.kv_heads, a.head_dim, dtype=FP8)

    def write(
        self, key: str, part: int, made: Mapping[str, Buffer], control: Buffer, page_table: Buffer
    ) -> list[Operation]:
        """Queries, and the rows in the pages; the arguments as in `TreeAttention.mix`."""
        model, rows, sizes = self._model, self._rows, self._sizes
        staged = {
            "control": control,
            "tail_k": self._new_k,
            "tail_v": self._new_v,
            "kv_scale": model.constants[f"kv_scale.{key}"],
        }
        place = self._place(part, control, page_table)
        return [
            attention_prep(model, rows, sizes, key, made, staged),
            Launch(KV_WRITE, sizes, {"new_k": self._new_k, "new_v": self._new_v, **place}),
        ]

    def mix(self, key: str, part: int, made: Mapping[str, Buffer], control: Buffer, page_table: Buffer) -> Mixed:
        """The same and the attention."""
        rows = self._rows
        attend = {
            "q": rows.q_rotated,
            "context": rows.context,
            "kv_scale": self._model.constants[f"kv_scale.{key}"],
            **self._place(part, control, page_table),
        }
        written = self.write(key, part, made, control, page_table)
        return rows.context, [*written, Launch(ATTN_PREFILL, self._sizes, attend)]

    def _place(self, part: int, control: Buffer, page_table: Buffer) -> dict[str, Buffer]:
        pool = self._model.pool
        return {"page_table": page_table, "control": control, "k_pages": pool.k[part], "v_pages": pool.v[part]}


class PrefillStep:
    """One step of the decoder over up to `count` consecutive tokens, committed in place."""

    def __init__(self, model: Model, count: int) -> None:
        self.rows = Rows(model, count, 1)
        # Row 0 is for the hidden row of the token before the chunk: the MTP layer's input is rows 0 … count - 1.
        self.hidden = model.zeros(count + 1, model.spec.hidden)
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
            *through_layers(self._model, rows, self.hidden[1:], mix),
            Launch(SAMPLE_TOPK, self._scoring, best),
        ]
