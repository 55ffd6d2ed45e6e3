"""Attention of steps, as operations: over a tree, behind a slot's pages, and over a prefill chunk, in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgellm.engine.device.base import Buffer, Launch, Operation
from edgellm.engine.device.memory import FP8
from edgellm.engine.device.rows import Mixed, Model, Rows
from edgellm.kernels.attention import ATTN_PREFILL, ATTN_PREP, KV_WRITE, TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.sizes import Sizes


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
