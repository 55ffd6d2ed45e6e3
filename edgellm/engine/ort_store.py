"""Published blocks and snapshots of the ONNX Runtime executor, by reference.

What must stay true: a reference is never reused, so one that was freed can never name something else.
"""

from __future__ import annotations

import itertools
from typing import TypeVar

from edgellm.engine.base import BlockRef, SnapshotRef
from edgellm.engine.ort_memory import Block, Pools, Snapshot

_Ref = TypeVar("_Ref", BlockRef, SnapshotRef)
_Kept = TypeVar("_Kept")


class Store:
    """Blocks and snapshots that are alive until they are freed. An unknown reference raises ValueError."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._blocks: dict[BlockRef, Block] = {}
        self._snapshots: dict[SnapshotRef, Snapshot] = {}
        self._next = itertools.count(1)

    def keep_block(self, block: Block) -> BlockRef:
        ref = BlockRef(next(self._next))
        self._blocks[ref] = block
        return ref

    def keep_snapshot(self, kept: Snapshot) -> SnapshotRef:
        ref = SnapshotRef(next(self._next))
        self._snapshots[ref] = kept
        return ref

    def block(self, ref: BlockRef) -> Block:
        return _live(self._blocks, ref)

    def snapshot(self, ref: SnapshotRef) -> Snapshot:
        return _live(self._snapshots, ref)

    def free_block(self, ref: BlockRef) -> None:
        self._pools.release(_live(self._blocks, ref))
        del self._blocks[ref]

    def free_snapshot(self, ref: SnapshotRef) -> None:
        _live(self._snapshots, ref)
        del self._snapshots[ref]

    def clear(self) -> None:
        """Free everything."""
        for ref in list(self._blocks):
            self.free_block(ref)
        self._snapshots.clear()

    def memory(self) -> dict[str, int]:
        """Bytes and counts of what is alive."""
        return {
            "blocks": sum(block.piece.values.nbytes for block in self._blocks.values()),
            "snapshots": sum(kept.nbytes for kept in self._snapshots.values()),
            "n_blocks": len(self._blocks),
            "n_snapshots": len(self._snapshots),
        }


def _live(table: dict[_Ref, _Kept], ref: _Ref) -> _Kept:
    if ref not in table:
        raise ValueError(f"reference {ref} was freed or never existed")
    return table[ref]
