"""A sequence's hold on the cache.

What must stay true: between `acquire` and the first `store` everything that `restore` needs is held; from then on the
path stored so far; after `release` nothing.
"""

from __future__ import annotations

from edgellm.cache.tree import Node, Snapshot
from edgellm.engine.base import BlockRef, SnapshotRef


class Lease:
    """Made by `PrefixCache.acquire`; hand it back with `release`.

    Attributes:
        namespace: the salt's digest.
        length: tokens to restore; 0: nothing was found.
        matched: tokens that agree with a cached path, at least `length`.
        data: all tokens seen with this lease, packed (the cache's own use).
        pinned: the deepest node held; None after release (the cache's own use).
    """

    __slots__ = ("_restoring", "data", "length", "matched", "namespace", "pinned")

    def __init__(self, namespace: bytes, data: bytes, matched: int, snapshot: Snapshot | None, root: Node) -> None:
        self.namespace = namespace
        self.length = 0 if snapshot is None else snapshot.offset
        self.matched = matched
        self.data = data
        self._restoring = snapshot
        self.pinned: Node | None = root if snapshot is None else snapshot.carrier
        self.pinned.pins += 1
        if snapshot is not None:
            snapshot.pins += 1

    @property
    def blocks(self) -> tuple[BlockRef, ...]:
        """What `Executor.restore` takes. Ask right before restoring: a longer block may have replaced a partial one."""
        return block_refs(self._held().carrier) if self.length else ()

    @property
    def snapshot(self) -> SnapshotRef | None:
        """What `Executor.restore` takes; None when there is nothing to restore."""
        return self._held().ref if self.length else None

    @property
    def restoring(self) -> Snapshot | None:
        """The snapshot held until the first store."""
        return self._restoring

    def hold(self, node: Node) -> None:
        """Hold `node` in place of the node held so far."""
        assert self.pinned is not None
        node.pins += 1
        self.pinned.pins -= 1
        self.pinned = node

    def restored(self) -> None:
        """The snapshot is no longer needed."""
        if self._restoring is not None:
            self._restoring.pins -= 1
            self._restoring = None

    def _held(self) -> Snapshot:
        if self._restoring is None:
            raise ValueError("restore before the first store or the release: the lease no longer holds what it found")
        return self._restoring


def block_refs(node: Node) -> tuple[BlockRef, ...]:
    """Blocks from the start of the path to `node`."""
    return tuple(above.block for above in node.path() if above.block is not None)
