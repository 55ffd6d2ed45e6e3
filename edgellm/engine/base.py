"""The executor contract: what owns device memory and runs the graph. All policy lives above it.

A *slot* holds one running sequence: KV rows, recurrent state and, when the bundle has MTP, the draft layer's KV.
`length(slot)` counts committed tokens. References (`BlockRef`, `SnapshotRef`) are opaque and stay valid until freed,
whatever happens to the slot they came from. Executors are used from one thread only.

What must stay true:
* `advance` commits its tokens; `verify` changes no committed state; `commit` applies one path of the last `verify`.
* After `restore(slot, n, …)` every later result equals the one of a slot that was advanced over the same n tokens.
* Nothing is shared between slots except through published references.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
from numpy.typing import NDArray

BlockRef = NewType("BlockRef", int)
SnapshotRef = NewType("SnapshotRef", int)


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Limits and sizes that the cache and the scheduler plan with."""

    slots: int
    max_tokens: int  # committed tokens a slot can hold (the context length)
    max_chunk: int  # tokens of one sequence in one advance()
    max_batch: int  # sequences in one advance() when every chunk is a single token
    max_tree: int  # nodes of one verify() tree, root included; 0 when verify is not available
    draft_top_k: int  # candidates that draft() returns per node; 0 when there is no MTP
    block_tokens: int  # tokens of a full cache block
    block_bytes: int  # bytes a published block keeps
    snapshot_bytes: int  # bytes a snapshot keeps
    vocab_size: int
    fingerprint: str  # identity of weights and layout: persisted references are valid only for the same one
    max_blocks: int | None = None  # blocks that can be published at the same time; None: as many as memory holds
    max_snapshots: int | None = None  # snapshots that can be kept at the same time; likewise


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens that follow the committed ones of `slot`."""

    slot: int
    tokens: Sequence[int] | NDArray[np.int64]
    logits: bool  # whether the last token's logits are wanted


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A tree to verify. Node 0 is the root: the next token of the sequence, already chosen.

    `parents[0]` is -1 and `parents[i] < i`: ancestors come first. A chain has `parents == [-1, 0, 1, …]`.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(frozen=True, slots=True)
class DraftNodes:
    """Nodes added to the draft tree of `slot`.

    The first call of a draft has `tokens=[root]`, `parents=[-1]`: it brings the MTP layer up to the committed tokens
    and starts a new tree. Later calls add nodes under existing ones; nodes are numbered in the order they were added
    (the root is 0), `parents` are such numbers.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(frozen=True, slots=True)
class DraftResult:
    """For each added node the `k = draft_top_k` best next tokens, best first."""

    token_ids: NDArray[np.int64]  # [nodes, k]
    logprobs: NDArray[np.float32]  # [nodes, k], log-softmax over the draft vocabulary


class Logits(Protocol):
    """Logits of one call. Valid until the executor's next call."""

    @property
    def rows(self) -> int: ...

    def greedy(self) -> NDArray[np.int64]:
        """Arg-max token of every row, [rows]; the lowest id wins a tie. Computed once: asking again costs nothing."""
        ...

    def row(self, index: int) -> NDArray[np.float32]:
        """All logits of one row, [vocab]. Read only: do not write into it."""
        ...


class Executor(Protocol):
    """See the module's docstring."""

    @property
    def info(self) -> ExecutorInfo: ...

    def length(self, slot: int) -> int:
        """Committed tokens in `slot`."""
        ...

    def reset(self, slot: int) -> None:
        """Empty the slot: length 0, zero recurrent state."""
        ...

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        """Make `slot` hold the first `length` tokens of a cached prefix.

        `blocks[i]` covers tokens [i*block_tokens, …); together they cover at least `length` tokens and the last one
        may be used only in part. `snapshot` was taken at exactly `length` tokens. `length == 0` resets the slot.
        """
        ...

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        """Make committed tokens [start, end) shareable: one block, `start` a multiple of block_tokens."""
        ...

    def snapshot(self, slot: int) -> SnapshotRef:
        """Keep the recurrent state (and MTP boundary row) at the slot's current length."""
        ...

    def free_block(self, ref: BlockRef) -> None: ...

    def free_snapshot(self, ref: SnapshotRef) -> None: ...

    def dump_block(self, ref: BlockRef) -> bytes:
        """Bytes that `load_block` of an executor with the same fingerprint turns into an equal block."""
        ...

    def load_block(self, data: bytes) -> BlockRef: ...

    def dump_snapshot(self, ref: SnapshotRef) -> bytes: ...

    def load_snapshot(self, data: bytes) -> SnapshotRef: ...

    def advance(self, batch: Sequence[Chunk]) -> Logits:
        """Process and commit chunks: one chunk of up to max_chunk tokens, or up to max_batch chunks of one token.

        Returns one row for each chunk with `logits=True`, in batch order.
        """
        ...

    def verify(self, tree: TokenTree) -> Logits:
        """Logits of every node given its ancestors and the committed tokens, one row per node. Commits nothing."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Commit nodes of the slot's last verified tree: path[0] == 0, each next one a child of the one before."""
        ...

    def draft(self, batch: Sequence[DraftNodes]) -> Sequence[DraftResult]:
        """Run the MTP layer on new draft nodes (see DraftNodes)."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes in use by purpose: 'weights', 'slots', 'blocks', 'snapshots'; and counts 'n_blocks', 'n_snapshots'."""
        ...

    def close(self) -> None: ...
