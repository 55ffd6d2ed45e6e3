"""The MTP layer over the slot pools: keeps up with the committed tokens and extends draft trees.

The MTP row of token j (j >= 1) is made of the hidden row of token j-1 and the embedding of token j, and stands at row
j-1. Catching up is lazy: a slot that holds n tokens has `rows` finished MTP rows, those of tokens 1 … rows, and keeps
hidden rows `rows` … n-1 and tokens rows+1 … n-1 for later (the last hidden row waits for the next token). What must
stay true: results depend on the committed tokens only, not on how they were committed or drafted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.base import DraftResult
from edgellm.engine.ort_memory import Pools
from edgellm.engine.ort_session import F32, Array, BiasBuffer, BoundGraph
from edgellm.graph.indices import MASKED
from edgellm.graph.mtp import DRAFT_TOP_K

# Scratch KV rows after a slot's committed ones. A tree of 16 nodes is drafted from at most 1 + 15 + 14 + … + 1 nodes: a
# node is expanded while it and its ancestors are among the best 15.
SCRATCH_ROWS: Final = 128
_LAZY: Final = 32  # waiting tokens above which commits run the layer
_CHUNK: Final = 128  # rows of one catch-up run


@dataclass(slots=True)
class _Slot:
    rows: int = 0
    tokens: list[int] = field(default_factory=list)
    hidden: list[F32] = field(default_factory=list)  # [H] each; len(tokens) + 1, or none in an empty slot
    # The draft tree: the root's row stands at `rows`, it becomes final when the root is committed.
    root: int | None = None
    depths: list[int] = field(default_factory=list)
    inputs: list[F32] = field(default_factory=list)  # hidden row [H] for the children of each node
    mask: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # [nodes, nodes], 0 for ancestors and self

    def end_tree(self) -> None:
        self.root, self.depths, self.inputs = None, [], []
        self.mask = np.zeros((0, 0), np.float32)


class DraftLayer:
    """MTP state of all slots over one graph.

    Args:
        positions: rows of the graph's RoPE tables; draft nodes beyond them are given the last position (such a node
            can never be emitted, the context ends before it).
    """

    def __init__(self, path: Path, threads: int, spec: ModelSpec, pools: Pools, *, positions: int) -> None:
        slots, rows = pools.kv.shape[1], pools.kv.shape[3]
        self._graph = BoundGraph(path, threads)
        self._pools = pools
        self._last = positions - 1
        self._slots = [_Slot() for _ in range(slots)]
        self._bias = BiasBuffer(_CHUNK, rows)
        self._hidden_in: F32 = np.empty((_CHUNK, spec.hidden), np.float32)
        self._hidden_out: F32 = np.empty((_CHUNK, spec.hidden), np.float32)

    def reset(self, slot: int) -> None:
        """The slot is empty."""
        self._slots[slot] = _Slot()

    def restore(self, slot: int, length: int, hidden: F32) -> None:
        """The slot holds `length` >= 1 tokens with their MTP rows; `hidden` is the last token's hidden row."""
        self._slots[slot] = _Slot(rows=length - 1, hidden=[hidden])

    def boundary(self, slot: int) -> F32:
        """Hidden row [H] of the last committed token of a slot that is not empty."""
        return self._slots[slot].hidden[-1]

    def append(self, slot: int, tokens: Sequence[int], hidden: F32) -> None:
        """`tokens` were committed to `slot`; `hidden` [len(tokens), H] are their hidden rows (copied)."""
        found = self._slots[slot]
        if found.root is not None and found.root == tokens[0]:  # its row is final: both its inputs are
            found.rows += 1
            found.hidden.clear()
        if not found.hidden:  # the first token has, or needs, no row of its own
            tokens = tokens[1:]
        found.tokens.extend(tokens)
        found.hidden.extend(hidden.copy())
        found.end_tree()
        if len(found.tokens) > _LAZY:
            self.flush(slot)

    def flush(self, slot: int) -> None:
        """Finish the rows of all committed tokens. A draft tree, if there is one, stays: nothing is waiting then."""
        found = self._slots[slot]
        while found.tokens:
            size = min(len(found.tokens), _CHUNK)
            mask = np.where(np.tri(size, dtype=np.bool_), np.float32(0), MASKED)
            self._run(slot, found.tokens[:size], found.hidden[:size], np.arange(size), mask, found.rows, scored=0)
            found.rows += size
            del found.tokens[:size], found.hidden[:size]
            found.hidden[-1] = found.hidden[-1].copy()  # not a view that keeps a whole chunk alive

    def start(self, slot: int, root: int) -> DraftResult:
        """Start a tree at the next token `root` of a slot that is not empty."""
        found = self._slots[slot]
        found.end_tree()
        tokens = [*found.tokens, root]
        size = len(tokens)
        mask = np.where(np.tri(size, dtype=np.bool_), np.float32(0), MASKED)
        result = self._run(slot, tokens, found.hidden, np.arange(size), mask, found.rows, scored=1)
        found.rows += size - 1
        found.tokens, found.hidden = [], found.hidden[-1:]
        found.root, found.depths, found.mask = root, [0], np.zeros((1, 1), np.float32)
        found.inputs = [self._hidden_out[size - 1].copy()]
        return result

    def check(self, slot: int, parents: Sequence[int]) -> None:
        """Raises ValueError: there is no tree, a parent is not in it, or it would outgrow the scratch rows."""
        old = len(self._slots[slot].depths)
        if not all(0 <= parent < old for parent in parents):
            raise ValueError(f"draft parents {list(parents)} are not nodes of the slot's tree of {old}")
        if old + len(parents) > SCRATCH_ROWS:
            raise ValueError(f"a draft tree of {old + len(parents)} nodes, at most {SCRATCH_ROWS}")

    def extend(self, slot: int, tokens: Sequence[int], parents: Sequence[int]) -> DraftResult:
        """Add nodes to the slot's draft tree; `check` has passed."""
        found = self._slots[slot]
        old, size = len(found.depths), len(tokens)
        mask = np.full((old + size, old + size), MASKED, np.float32)
        mask[:old, :old] = found.mask
        for node, parent in enumerate(parents, old):
            mask[node] = mask[parent]
            mask[node, node] = 0
        depths = [found.depths[parent] + 1 for parent in parents]
        hidden = [found.inputs[parent] for parent in parents]
        result = self._run(slot, tokens, hidden, np.asarray(depths), mask[old:], found.rows, scored=size, tree=old)
        found.mask = mask
        found.depths += depths
        found.inputs += list(self._hidden_out[:size].copy())
        return result

    def _run(
        self,
        slot: int,
        tokens: Sequence[int],
        hidden: Sequence[F32],
        offsets: NDArray[np.int64],
        mask: F32,
        rows: int,
        *,
        scored: int,
        tree: int = 0,
    ) -> DraftResult:
        """Write KV rows rows+tree … and score the last `scored` of them.

        Args:
            offsets: positions [S] relative to `rows`.
            mask: [S, tree + S] over the rows from `rows` on; everything before is visible.
            tree: draft nodes that already stand after `rows`.
        """
        size, past = len(tokens), rows + tree
        binding = self._graph.bind((slot, size, scored), lambda: self._bind(slot, size, scored))
        inputs = binding.inputs
        inputs["input_ids"][0] = tokens
        inputs["hidden_in"][0] = hidden
        inputs["positions"][0] = np.minimum(rows + offsets, self._last)
        inputs["seqlens_k"][0] = past + size - 1
        inputs["total_seqlen"][()] = past + size
        self._graph.run(binding, attn_bias=self._bias.fill(mask, past + size))
        outputs = binding.outputs
        return DraftResult(outputs["topk_ids"].copy(), outputs["topk_logits"] - outputs["log_norm"])

    def _bind(self, slot: int, size: int, scored: int) -> tuple[dict[str, Array], dict[str, Array]]:
        part = self._pools.attention_parts
        keys, values = (self._pools.kv[part + i, slot : slot + 1] for i in (0, 1))
        inputs: dict[str, Array] = {
            "input_ids": np.zeros((1, size), np.int64),
            "hidden_in": self._hidden_in[None, :size],
            "positions": np.zeros((1, size), np.int64),
            "seqlens_k": np.zeros(1, np.int32),
            "total_seqlen": np.zeros((), np.int32),
            "logit_rows": np.arange(size - scored, size),
            "mtp_k": keys,
            "mtp_v": values,
        }
        outputs: dict[str, Array] = {
            "hidden_out": self._hidden_out[None, :size],
            "topk_ids": np.empty((scored, DRAFT_TOP_K), np.int64),
            "topk_logits": np.empty((scored, DRAFT_TOP_K), np.float32),
            "log_norm": np.empty((scored, 1), np.float32),
            "mtp_k_out": keys,
            "mtp_v_out": values,
        }
        return inputs, outputs
