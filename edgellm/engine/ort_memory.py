"""Host memory of the ONNX Runtime executor: slot pools, published blocks, snapshots, and the copies between them.

Layout: `kv[layer, slot, head, row, dim]` with layers ordered k0, v0, k1, v1, … over the full-attention layers and then
the MTP layer's k and v. Row r of an attention layer belongs to token r. Row r of the MTP layer belongs to token r + 1
(it needs the hidden row of token r), so a block of tokens [s, e) carries MTP rows s-1 … e-2, none for token 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of up to block_tokens tokens: f32 [layers, kv_heads, tokens, head_dim]."""

    rows: F32

    @property
    def tokens(self) -> int:
        return int(self.rows.shape[2])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Recurrent state after `length` tokens, and the hidden row of the last of them."""

    length: int
    conv: F32  # [linear layers, K-1, C]
    state: F32  # [linear layers, Hv, dk, dv]
    hidden: F32  # [H]


class Pools:
    """The memory of all slots. Pages are touched only when rows are written."""

    def __init__(self, spec: ModelSpec, slots: int, rows: int, mtp: bool, copy_threads: int) -> None:
        linear, attention = spec.linear, spec.attention
        self.attention_layers = 2 * len(spec.full_layers)
        self.kv_layers = self.attention_layers + (2 if mtp else 0)
        count = len(spec.linear_layers)
        self.kv: F32 = np.zeros((self.kv_layers, slots, attention.kv_heads, rows, attention.head_dim), np.float32)
        self.conv: F32 = np.zeros((count, slots, linear.conv_kernel - 1, linear.conv_channels), np.float32)
        self.state: F32 = np.zeros((count, slots, linear.value_heads, linear.key_dim, linear.value_dim), np.float32)
        self._parts = [part for part in np.array_split(np.arange(self.kv_layers), copy_threads) if part.size]
        self._workers = ThreadPoolExecutor(copy_threads, thread_name_prefix="edgellm-copy")

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self.conv.nbytes + self.state.nbytes

    def close(self) -> None:
        self._workers.shutdown()

    def clear_state(self, slot: int) -> None:
        """Zero the recurrent state; KV rows are dead by their length alone."""
        self.conv[:, slot] = 0
        self.state[:, slot] = 0

    def read_block(self, slot: int, start: int, end: int) -> Block:
        """Copy tokens [start, end) out of a slot."""
        rows = np.zeros((self.kv_layers, self.kv.shape[2], end - start, self.kv.shape[4]), np.float32)
        split = self.attention_layers
        rows[:split] = self.kv[:split, slot, :, start:end]
        first = max(start, 1)  # token 0 has no MTP row
        rows[split:, :, first - start :] = self.kv[split:, slot, :, first - 1 : end - 1]
        return Block(rows)

    def write_blocks(self, slot: int, items: Sequence[tuple[int, Block]]) -> None:
        """Copy blocks into a slot; each item is (first token, block). Layers are copied in parallel."""
        if items:
            list(self._workers.map(self._layer_writer(slot, items), self._parts))

    def _layer_writer(self, slot: int, items: Sequence[tuple[int, Block]]) -> Callable[[NDArray[np.intp]], None]:
        def write(part: NDArray[np.intp]) -> None:
            low, split = int(part[0]), self.attention_layers
            high = int(part[-1]) + 1
            for start, block in items:
                end = start + block.tokens
                middle = min(high, split)
                if low < middle:
                    self.kv[low:middle, slot, :, start:end] = block.rows[low:middle]
                if high > split:
                    first = max(start, 1)
                    under = max(low, split)
                    self.kv[under:high, slot, :, first - 1 : end - 1] = block.rows[under:high, :, first - start :]

        return write

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move attention rows base + path[i] to base + i: the accepted nodes become consecutive tokens."""
        if list(path) != list(range(len(path))):
            source = base + np.asarray(path)
            rows = self.kv[: self.attention_layers, slot]
            rows[:, :, base : base + len(path)] = rows[:, :, source]

    def read_state(self, slot: int, length: int, hidden: F32) -> Snapshot:
        return Snapshot(length, self.conv[:, slot].copy(), self.state[:, slot].copy(), hidden.copy())

    def write_state(self, slot: int, snapshot: Snapshot) -> None:
        self.conv[:, slot] = snapshot.conv
        self.state[:, slot] = snapshot.state
