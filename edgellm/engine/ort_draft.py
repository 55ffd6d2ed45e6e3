"""The MTP layer of the ONNX Runtime executor: keeps it up with the committed tokens and extends draft trees.

Catch-up is lazy. Per slot, `tokens` and `hidden` hold what the layer has not seen: with n committed tokens and `rows`
MTP rows, hidden are those of tokens rows … n-1 and tokens are rows+1 … n-1 (one fewer: the last hidden row waits for
the next token). The root's row is kept when the root is committed, since both its inputs are final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.base import DraftNodes, DraftResult
from edgellm.engine.ort_memory import Pools
from edgellm.engine.ort_session import BoundGraph
from edgellm.graph.indices import MASKED
from edgellm.graph.mtp import DRAFT_TOP_K

F32 = NDArray[np.float32]
_FLUSH_AT = 64  # waiting rows after which advance() runs the layer
_CHUNK = 512


@dataclass(slots=True)
class _Waiting:
    rows: int = 0
    tokens: list[int] = field(default_factory=list)
    hidden: list[F32] = field(default_factory=list)  # rows [H]
    root: int | None = None  # token whose row stands at `rows` provisionally
    nodes: list[F32] = field(default_factory=list)  # output hidden of draft nodes
    visible: list[NDArray[np.bool_]] = field(default_factory=list)  # ancestors of each draft node, by node


class DraftLayer:
    """MTP state of all slots over one graph."""

    TOP_K: ClassVar[int] = DRAFT_TOP_K

    def __init__(self, path: Path, threads: int, spec: ModelSpec, pools: Pools, slots: int) -> None:
        self._graph = BoundGraph(path, threads)
        self._hidden_size = spec.hidden
        self._pools = pools
        self._slots = [_Waiting() for _ in range(slots)]

    def reset(self, slot: int) -> None:
        self._slots[slot] = _Waiting()

    def restore(self, slot: int, length: int, hidden: F32) -> None:
        """The slot holds `length` tokens with their MTP rows; `hidden` is the last token's."""
        self._slots[slot] = _Waiting(rows=length - 1, hidden=[hidden])

    def boundary(self, slot: int) -> F32:
        """Hidden row of the last committed token."""
        waiting = self._slots[slot].hidden
        return waiting[-1] if waiting else np.zeros(self._hidden_size, np.float32)

    def append(self, slot: int, base: int, tokens: Sequence[int] | NDArray[np.int64], hidden: F32) -> None:
        """Committed tokens that follow the first `base` ones, with their hidden rows [len(tokens), H]."""
        w = self._slots[slot]
        w.tokens.extend(int(token) for token in (tokens if base else tokens[1:]))
        w.hidden.extend(hidden.copy())
        if w.root is not None and len(w.tokens) and w.tokens[0] == w.root:
            w.rows += 1
            del w.tokens[0], w.hidden[0]
        w.root = None
        w.nodes, w.visible = [], []
        if len(w.tokens) >= _FLUSH_AT:
            self.flush(slot)

    def flush(self, slot: int) -> None:
        """Run the layer over all waiting tokens."""
        w = self._slots[slot]
        w.root = None
        while w.tokens:
            size = min(len(w.tokens), _CHUNK)
            self._run(slot, w.tokens[:size], w.hidden[:size], w.rows, np.arange(size), _causal(size), rows=1)
            w.rows += size
            del w.tokens[:size], w.hidden[:size]
        w.nodes, w.visible = [], []

    def extend(self, nodes: DraftNodes, length: int) -> DraftResult:
        """Add draft nodes (see `DraftNodes`) to the slot, which has `length` committed tokens."""
        w = self._slots[nodes.slot]
        if not length:
            raise ValueError("drafting needs at least one committed token")
        if list(nodes.parents) == [-1]:
            return self._root(nodes.slot, w, int(nodes.tokens[0]))
        count, size = len(w.nodes), len(nodes.tokens)
        if w.root is None or any(not 0 <= parent < count for parent in nodes.parents):
            raise ValueError(f"draft parents {list(nodes.parents)} are not nodes of the current tree of {count}")
        mask = np.full((size, count + size), MASKED, np.float32)
        for row, parent in enumerate(nodes.parents):
            visible = np.zeros(count + row + 1, np.bool_)
            visible[: len(w.visible[parent])] = w.visible[parent]
            visible[-1] = True
            mask[row, : visible.size][visible] = 0
            w.visible.append(visible)
        depths = np.array([int(visible.sum()) - 1 for visible in w.visible[-size:]])
        hidden = [w.nodes[parent] for parent in nodes.parents]
        return self._run(nodes.slot, nodes.tokens, hidden, w.rows + count, depths - count, mask, rows=size)

    def _root(self, slot: int, w: _Waiting, root: int) -> DraftResult:
        """Catch up and process the root in one run; only the root's candidates are wanted."""
        tokens, hidden, size = [*w.tokens, root], list(w.hidden), len(w.hidden)
        if size > _CHUNK:
            self.flush(slot)
            tokens, hidden, size = [root], list(w.hidden), 1
        w.nodes, w.visible = [], [np.ones(1, np.bool_)]
        result = self._run(slot, tokens, hidden, w.rows, np.arange(size), _causal(size), rows=1)
        w.rows += size - 1
        w.tokens, w.hidden = [], w.hidden[-1:]
        w.root = root
        return result

    def _run(
        self,
        slot: int,
        tokens: Sequence[int],
        hidden: Sequence[F32],
        past: int,
        offsets: NDArray[np.int64],
        mask: F32,
        *,
        rows: int,
    ) -> DraftResult:
        """Run rows past … past+S-1; `mask` [S, extra + S] covers the last columns.

        The last `rows` rows are scored, and their hidden rows become draft nodes.
        """
        size = len(tokens)
        binding = self._graph.bind((slot, size, rows), lambda: self._bind(slot, size, rows))
        inputs = binding.inputs
        inputs["input_ids"][0] = tokens
        inputs["hidden_in"][0] = hidden
        inputs["positions"][0] = past + offsets
        inputs["seqlens_k"][0] = past + size - 1
        inputs["total_seqlen"][()] = past + size
        bias = np.zeros((1, 1, size, past + size), np.float32)
        bias[0, 0, :, past + size - mask.shape[1] :] = mask
        self._graph.run(binding, attn_bias=bias)
        outputs = binding.outputs
        self._slots[slot].nodes.extend(outputs["hidden_out"][0, size - rows :].copy())
        return DraftResult(outputs["topk_ids"].copy(), outputs["topk_logits"] - outputs["log_norm"])

    def _bind(self, slot: int, size: int, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
        layer, span = self._pools.attention_layers, slice(slot, slot + 1)
        key, value = self._pools.kv[layer, span], self._pools.kv[layer + 1, span]
        inputs = {
            "input_ids": np.zeros((1, size), np.int64),
            "hidden_in": np.zeros((1, size, self._hidden_size), np.float32),
            "positions": np.zeros((1, size), np.int64),
            "seqlens_k": np.zeros(1, np.int32),
            "total_seqlen": np.zeros((), np.int32),
            "logit_rows": np.arange(size - rows, size, dtype=np.int64),
            "mtp_k": key,
            "mtp_v": value,
        }
        outputs = {
            "hidden_out": np.empty((1, size, self._hidden_size), np.float32),
            "topk_ids": np.empty((rows, DRAFT_TOP_K), np.int64),
            "topk_logits": np.empty((rows, DRAFT_TOP_K), np.float32),
            "log_norm": np.empty((rows, 1), np.float32),
            "mtp_k_out": key,
            "mtp_v_out": value,
        }
        return inputs, outputs


def _causal(size: int) -> F32:
    return np.where(np.tri(size, dtype=np.bool_), np.float32(0), MASKED)
