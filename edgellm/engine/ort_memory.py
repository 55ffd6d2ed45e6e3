"""Host memory of the ONNX Runtime executor: slot pools, published blocks, snapshots, and the copies between them.

Layout: `kv[part, slot, head, row, dim]`; the parts are k and v of each full-attention layer in turn, then k and v of
the MTP layer. Row r of an attention layer belongs to token r. Row r of the MTP layer belongs to token r + 1 (it needs
the hidden row of token r), so a block of tokens [s, e) carries the MTP rows s-1 … e-2, and none for token 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.arena import Arena, Piece
from edgellm.errors import ConfigError

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of up to block_tokens tokens: contiguous f32 [parts, kv_heads, tokens, head_dim] in a piece of the arena."""

    rows: F32
    piece: Piece

    @property
    def tokens(self) -> int:
        return int(self.rows.shape[2])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Recurrent state after `length` tokens, and the hidden row of the last of them when there is an MTP layer."""

    length: int
    conv: F32  # [linear layers, K-1, C]
    state: F32  # [linear layers, Hv, dk, dv]
    hidden: F32  # [H], or [0] without MTP

    @property
    def nbytes(self) -> int:
        return self.conv.nbytes + self.state.nbytes + self.hidden.nbytes


def pool_shapes(spec: ModelSpec, slots: int, rows: int, *, mtp: bool) -> tuple[tuple[int, ...], ...]:
    """Shapes of the kv, conv and state pools, all float32."""
    linear, attention, layers = spec.linear, spec.attention, len(spec.linear_layers)
    parts = 2 * (len(spec.full_layers) + mtp)
    return (
        (parts, slots, attention.kv_heads, rows, attention.head_dim),
        (layers, slots, linear.conv_kernel - 1, linear.conv_channels),
        (layers, slots, linear.value_heads, linear.key_dim, linear.value_dim),
    )


def check_memory(spec: ModelSpec, slots: int, context: int, rows: int, *, mtp: bool, weights: int) -> None:
    """The pools and `weights` bytes of weights fit into the memory that is available now.

    Raises:
        ConfigError: they do not; the message says what would.
    """
    needed = sum(4 * math.prod(shape) for shape in pool_shapes(spec, slots, rows, mtp=mtp))
    available = psutil.virtual_memory().available
    if needed + weights > available:
        fits = max(0, available - weights) * context // needed
        raise ConfigError(
            f"{slots} slots of {context} tokens need {needed / 2**30:.1f} GiB beside {weights / 2**30:.1f} GiB of "
            f"weights, {available / 2**30:.1f} GiB are available: ask for fewer slots or a context of at most {fits}"
        )


class Pools:
    """The memory of all slots and blocks. Fresh pages are taken from the system only when rows are written.

    Args:
        rows: KV rows of a slot, scratch rows included.
        block_tokens: most tokens of a block.
        copy_threads: threads that share a copy.
    """

    def __init__(
        self, spec: ModelSpec, slots: int, rows: int, *, mtp: bool, block_tokens: int, copy_threads: int
    ) -> None:
        kv, conv, state = pool_shapes(spec, slots, rows, mtp=mtp)
        self.attention_parts = 2 * len(spec.full_layers)
        self.parts = kv[0]
        self.kv: F32 = np.empty(kv, np.float32)  # unlike zeros, in huge pages; no row is read before it was written
        self.conv: F32 = np.zeros(conv, np.float32)
        self.state: F32 = np.zeros(state, np.float32)
        self._blocks = Arena(self.token_bytes // 4 * block_tokens)
        layers = conv[0]
        self._shares = [
            (self.parts * i // copy_threads, self.parts * (i + 1) // copy_threads, i) for i in range(copy_threads)
        ]
        self._layer_shares = [layers * i // copy_threads for i in range(copy_threads + 1)]
        self._workers = ThreadPoolExecutor(copy_threads, thread_name_prefix="edgellm-copy")

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.kv.nbytes + self.conv.nbytes + self.state.nbytes

    @property
    def token_bytes(self) -> int:
        """Bytes of the rows of one token."""
        return int(self.parts * self.kv.shape[2] * self.kv.shape[4] * self.kv.itemsize)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one slot."""
        return int(self.conv.nbytes + self.state.nbytes) // int(self.conv.shape[1])

    def close(self) -> None:
        self._workers.shutdown()

    def clear_state(self, slot: int) -> None:
        """Zero the recurrent state. KV rows need no clearing: nothing reads rows past a slot's length."""
        self.conv[:, slot] = 0
        self.state[:, slot] = 0

    def read_block(self, slot: int, start: int, end: int) -> Block:
        """Copy tokens [start, end) out of a slot."""
        block = self.new_block(end - start)
        rows = block.rows
        split = self.attention_parts
        rows[:split] = self.kv[:split, slot, :, start:end]
        first = max(start, 1)
        rows[split:, :, : first - start] = 0
        rows[split:, :, first - start :] = self.kv[split:, slot, :, first - 1 : end - 1]
        return block

    def new_block(self, tokens: int) -> Block:
        """A block of `tokens` tokens to be filled."""
        parts, _, heads, _, dim = self.kv.shape
        piece = self._blocks.take()
        return Block(piece.values[: parts * heads * tokens * dim].reshape(parts, heads, tokens, dim), piece)

    def release(self, block: Block) -> None:
        """The block is not used any more."""
        self._blocks.give(block.piece)

    def read_state(self, slot: int, length: int, hidden: F32) -> Snapshot:
        """Copy the recurrent state out of a slot."""
        return Snapshot(length, self.conv[:, slot].copy(), self.state[:, slot].copy(), hidden.copy())

    def write(self, slot: int, blocks: Sequence[tuple[int, Block]], snapshot: Snapshot) -> None:
        """Copy blocks, each with its first token, and a recurrent state into a slot; the threads share the work."""
        list(self._workers.map(self._writer(slot, blocks, snapshot), self._shares))

    def _writer(
        self, slot: int, blocks: Sequence[tuple[int, Block]], snapshot: Snapshot
    ) -> Callable[[tuple[int, int, int]], None]:
        def write(share: tuple[int, int, int]) -> None:
            low, high, index = share
            middle = min(max(low, self.attention_parts), high)
            for start, block in blocks:
                end, first = start + block.tokens, max(start, 1)
                self.kv[low:middle, slot, :, start:end] = block.rows[low:middle]
                self.kv[middle:high, slot, :, first - 1 : end - 1] = block.rows[middle:high, :, first - start :]
            layers = slice(self._layer_shares[index], self._layer_shares[index + 1])
            self.conv[layers, slot] = snapshot.conv[layers]
            self.state[layers, slot] = snapshot.state[layers]

        return write

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move attention rows base + path[i] to base + i: accepted nodes become consecutive tokens."""
        if list(path) != list(range(len(path))):
            rows = self.kv[: self.attention_parts, slot]
            rows[:, :, base : base + len(path)] = rows[:, :, base + np.asarray(path)]
