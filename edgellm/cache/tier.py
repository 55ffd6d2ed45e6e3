"""The second tier: dumps of cached paths, in host memory or in files, under one budget of bytes.

Paths form the same tree as in the cache, so a block that two of them share is kept once; what goes first follows the
cache's own order, a snapshot with the block that carries it. What must stay true: the bytes kept never exceed the
budget; a path that is held is not evicted; nothing is handed out that differs from what was put in (`DamagedDump`).
One thread uses a tier; `stats` may be read from any.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgellm.cache.check import check_tree
from edgellm.cache.events import EventBus
from edgellm.cache.eviction import block_victims
from edgellm.cache.keys import TokenKey
from edgellm.cache.pool import Pool
from edgellm.cache.tree import Node, Snapshot, search, walk
from edgellm.cache.vault import DamagedDump, Folder, Memory, Vault
from edgellm.engine.base import BlockRef, ExecutorInfo, SnapshotRef

logger = logging.getLogger(__name__)


class NoRoomError(Exception):
    """A dump does not fit into the tier, or cannot be written."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """What the tier holds now, and totals since start."""

    bytes: int
    budget_bytes: int
    blocks: int
    snapshots: int
    offloads: int  # that were stored whole
    refused: int  # offloads for which there was no room
    offloaded_bytes: int  # written
    recalls: int  # that brought something back
    recalled_tokens: int  # that could be restored only thanks to them
    recalled_bytes: int  # read
    evicted_blocks: int
    evicted_snapshots: int
    damaged: int  # dumps that could not be read back


class Hold:
    """A path that must stay, by its deepest node."""

    def __init__(self, root: Node) -> None:
        self.root = self.node = root
        root.pins += 1

    def extend(self, node: Node) -> None:
        """Hold `node` instead, unless what is held lies deeper on its path."""
        if node.start >= self.node.start:
            node.pins += 1
            self.node.pins -= 1
            self.node = node


class Tier:
    """See the module's docstring.

    Args:
        info: of the executor that makes the dumps.
        budget_bytes: of all dumps together; 0 keeps nothing.
        directory: dumps are files in a folder of their own in there; None: they stay in memory.
        clock: the cache's, for the durations of priorities.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(
        self, info: ExecutorInfo, *, budget_bytes: int, directory: Path | None, clock: Callable[[], float]
    ) -> None:
        self.count: Counter[str] = Counter()  # the totals of `TierStats` that transfers count
        self._info = info
        self.budget_bytes = budget_bytes
        self._clock = clock
        self._vault = Vault(info, Memory() if directory is None else Folder(directory))
        self._pool = Pool(self._vault, sys.maxsize, sys.maxsize, clock, EventBus())  # bounded by bytes, not by numbers

    def root(self, namespace: bytes) -> Node | None:
        return self._pool.roots.get(namespace)

    def find(self, key: TokenKey, namespace: bytes) -> Snapshot | None:
        """The deepest snapshot that agrees with `key`."""
        root = self.root(namespace)
        return None if root is None else search(root, key, self._info.block_tokens).snapshot

    @contextmanager
    def holding(self, namespace: bytes) -> Iterator[Hold]:
        """Hold the root of a salt, made when absent, and later what the hold is extended to."""
        hold = Hold(self._pool.root(namespace))
        try:
            yield hold
        finally:
            hold.node.pins -= 1
            self._pool.drop_if_empty(hold.node)

    def size(self, item: Node | Snapshot) -> int:
        """Bytes of its dump."""
        ref = item.ref if isinstance(item, Snapshot) else item.block
        assert ref is not None
        return self._vault.size(ref)

    def put_block(self, parent: Node, source: Node, dump: bytes) -> Node:
        """Keep a block of the cache below `parent`, which is held and covers everything before; returns its node here.

        Raises:
            NoRoomError: it does not fit beside what is held.
        """
        ref = BlockRef(self._keep(dump))
        shorter = parent.shorter(source.data)
        if shorter is None:
            node = self._pool.add_block(parent, source.data, ref, source.retention)
        else:
            self._pool.replace_block(shorter, source.data, ref)
            node = shorter
            self._pool.raise_retention(node, source.retention, self._clock())
        self.touch(node)
        return node

    def put_snapshot(self, node: Node, source: Snapshot, dump: bytes) -> None:
        """Keep a snapshot of the cache that ends in `node`'s block, which is held.

        Raises:
            NoRoomError: it does not fit beside what is held.
        """
        ref = SnapshotRef(self._keep(dump))
        self._pool.add_snapshot(node, source.data, source.kind, lambda: ref, source.retention, self._clock())

    def read(self, item: Node | Snapshot) -> bytes:
        """Its dump. One that is damaged is dropped, with everything that stands on it.

        Raises:
            DamagedDump: see `vault`.
        """
        ref = item.ref if isinstance(item, Snapshot) else item.block
        assert ref is not None
        try:
            return self._vault.read(ref)
        except DamagedDump as error:
            logger.warning("%s: recomputed instead of recalled", error)
            self.count["damaged"] += 1
            self._drop(item)
            raise

    def touch(self, node: Node) -> None:
        """The path to `node` was used."""
        node.used = self._pool.next_tick()
        for snapshot in node.carried:
            snapshot.used = node.used

    def stats(self) -> TierStats:
        count, pool = self.count, self._pool
        return TierStats(
            bytes=self._vault.bytes,
            budget_bytes=self.budget_bytes,
            blocks=pool.n_blocks,
            snapshots=len(pool.snapshots),
            offloads=count["offloads"],
            refused=count["refused"],
            offloaded_bytes=count["offloaded_bytes"],
            recalls=count["recalls"],
            recalled_tokens=count["recalled_tokens"],
            recalled_bytes=count["recalled_bytes"],
            evicted_blocks=pool.removed["evicted block"],
            evicted_snapshots=pool.removed["evicted snapshot"],
            damaged=count["damaged"],
        )

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        pool = self._pool
        counts = check_tree(pool.roots, pool.leaves, self._info.block_tokens)
        assert (counts.blocks, counts.snapshots) == (pool.n_blocks, set(pool.snapshots))
        nodes = [node for root in pool.roots.values() for node in walk(root)]
        sizes = sum(map(self.size, nodes)) + sum(map(self.size, pool.snapshots))
        assert sizes == self._vault.bytes <= self.budget_bytes

    def close(self) -> None:
        """Forget everything."""
        self._vault.close()

    def _keep(self, dump: bytes) -> int:
        """Write a dump, in the place of older ones where necessary: for the budget, and where the disk is full."""
        victims = block_victims(self._pool.leaves, self._clock())
        reason = f"{len(dump)} bytes"
        while True:
            if self._vault.bytes + len(dump) <= self.budget_bytes:
                try:
                    ref = self._vault.keep(dump)
                    break
                except OSError as error:
                    reason = str(error)
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        logger.warning("a session is not offloaded: %s", error)
                        raise NoRoomError(reason) from error
            node = next(victims, None)
            if node is None:
                logger.warning("a session is not offloaded: %s", reason)
                raise NoRoomError(reason)
            self._pool.remove_block(node, "evicted")
        self.count["offloaded_bytes"] += len(dump)
        return ref

    def _drop(self, item: Node | Snapshot) -> None:
        if isinstance(item, Snapshot):
            self._pool.remove_snapshot(item, "cleared")
            return
        for node in [*reversed(list(walk(item))), item]:  # a node comes after its parent in `walk`
            self._pool.remove_block(node, "cleared")
