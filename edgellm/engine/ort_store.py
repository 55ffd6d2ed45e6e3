"""Published blocks and snapshots of the ONNX Runtime executor, by reference."""

from __future__ import annotations

import itertools

from edgellm.engine.base import BlockRef, SnapshotRef
from edgellm.engine.ort_memory import Block, Pools, Snapshot
from edgellm.engine.references import References


class Store:
    """Blocks and snapshots that are alive until they are freed. An unknown reference raises ValueError."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        numbers = itertools.count(1)
        self._blocks = References[BlockRef, Block](BlockRef, numbers)
        self._snapshots = References[SnapshotRef, Snapshot](SnapshotRef, numbers)

    def keep_block(self, block: Block) -> BlockRef:
        return self._blocks.keep(block)

    def keep_snapshot(self, kept: Snapshot) -> SnapshotRef:
        return self._snapshots.keep(kept)

    def block(self, ref: BlockRef) -> Block:
        return self._blocks.get(ref)

    def snapshot(self, ref: SnapshotRef) -> Snapshot:
        return self._snapshots.get(ref)

    def free_block(self, ref: BlockRef) -> None:
        self._pools.release(self._blocks.drop(ref))

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._snapshots.drop(ref)

    def clear(self) -> None:
        """Free everything."""
        for block in self._blocks.clear():
            self._pools.release(block)
        self._snapshots.clear()

    def memory(self) -> dict[str, int]:
        """Bytes and counts of what is alive."""
        return {
            "blocks": sum(block.piece.values.nbytes for block in self._blocks.values()),
            "snapshots": sum(kept.nbytes for kept in self._snapshots.values()),
            "n_blocks": len(self._blocks),
            "n_snapshots": len(self._snapshots),
        }
