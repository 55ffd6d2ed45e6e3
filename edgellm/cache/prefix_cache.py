"""The prefix cache: which token paths can be restored, what is kept, and what goes when memory is short.

Keys are token ids under a salt; nothing is shared across salts. KV rows of a block are valid for any prefix of its
tokens, so a prompt may leave a cached path inside a block; the recurrent state is valid only at a snapshot's offset.

What must stay true: bytes never exceed the two budgets; pinned nodes and nodes with children are never evicted; every
reference held belongs to exactly one node or snapshot entry (`check`). One thread uses a cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgellm.cache.events import CacheEvent, EventBus
from edgellm.cache.tree import (
    DEFAULT_PRIORITY,
    Match,
    Node,
    Retention,
    SnapshotEntry,
    SnapshotKind,
    Tokens,
    common,
    path_hash,
    search,
    walk,
)
from edgellm.engine.base import BlockRef, Executor, SnapshotRef


@dataclass(slots=True)
class Lease:
    """A running sequence's hold on a path. `blocks` and `snapshot` are valid right after acquire()."""

    salt: str
    node: Node  # deepest pinned node (the salt's root when nothing is held)
    length: int
    matched: int
    blocks: tuple[BlockRef, ...]
    snapshot: SnapshotRef | None


@dataclass(slots=True)
class CacheStats:
    """Totals since start, and what is held now."""

    lookups: int = 0
    hits: int = 0
    restored_tokens: int = 0
    evicted_blocks: int = 0
    evicted_snapshots: int = 0
    refused: int = 0  # stores that did not fit
    blocks: int = 0
    snapshots: int = 0
    block_bytes: int = 0
    snapshot_bytes: int = 0


class PrefixCache:
    """See the module's docstring.

    Args:
        executor: where blocks and snapshots live.
        block_budget, snapshot_budget: bytes; 0 keeps nothing of that kind.
        clock: seconds, for durations and recency.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        block_budget: int,
        snapshot_budget: int,
        clock: Callable[[], float] = time.monotonic,
        events: EventBus | None = None,
    ) -> None:
        self._executor = executor
        self._info = executor.info
        self._budgets = (block_budget, snapshot_budget)
        self._clock = clock
        self.events = events or EventBus()
        self.stats = CacheStats()
        self._roots: dict[str, Node] = {}
        self._entries: dict[SnapshotRef, SnapshotEntry] = {}

    def match(self, tokens: Sequence[int] | Tokens, *, salt: str = "", limit: int | None = None) -> Match:
        """What could be restored of `tokens`; changes nothing. `limit` is the longest useful length."""
        array = np.asarray(tokens, np.int32)
        return search(self._root(salt), array, self._info.block_tokens, len(array) if limit is None else limit)

    def acquire(self, tokens: Sequence[int] | Tokens, *, salt: str = "", limit: int | None = None) -> Lease:
        """Pin the best prefix. Restore from `blocks` and `snapshot` before anything else is stored."""
        found = self.match(tokens, salt=salt, limit=limit)
        self.stats.lookups += 1
        if found.entry is None:
            node = self._root(salt)
            node.pins += 1
            return Lease(salt, node, 0, found.matched, (), None)
        self.stats.hits += 1
        self.stats.restored_tokens += found.length
        now = self._clock()
        path = found.entry.node.path()
        for node in path:
            node.used = now
        found.entry.used = now
        found.entry.node.pins += 1
        blocks = tuple(node.block for node in path if node.block is not None)
        return Lease(salt, found.entry.node, found.length, found.matched, blocks, found.entry.ref)

    def release(self, lease: Lease) -> None:
        """Give the pin back."""
        lease.node.pins -= 1

    def store(
        self,
        lease: Lease,
        tokens: Sequence[int] | Tokens,
        end: int,
        *,
        slot: int,
        snapshot: SnapshotKind | None,
        priority: int | None = None,
        duration_s: float | None = None,
    ) -> bool:
        """Keep tokens[:end], which `slot` has committed; with `snapshot` the slot's length must be exactly `end`.

        The lease moves down to the stored path. Returns False when the budgets do not allow all of it.
        """
        array = np.asarray(tokens, np.int32)[:end]
        now = self._clock()
        expires = None if duration_s is None else now + duration_s
        retention = Retention(DEFAULT_PRIORITY if priority is None else priority, expires)
        node = self._root(lease.salt)
        while node.end < end:
            below = self._descend(node, array[node.end : node.end + self._info.block_tokens], slot, retention)
            if below is None:
                self.stats.refused += 1
                return False
            below.used = now
            if retention.effective(now) > below.retention.effective(now):
                below.retention = retention
            below.pins += 1
            lease.node.pins -= 1
            lease.node = node = below
        return snapshot is None or self._keep_snapshot(node, end, slot, snapshot, retention, now)

    def drop_all(self) -> None:
        """Free everything; no lease may be held."""
        for root in self._roots.values():
            for node in list(walk(root)):
                for entry in list(node.snapshots.values()):
                    self._remove_snapshot(entry)
                if node.block is not None:
                    self._free_block(node, node.block)
        self._roots.clear()

    def adopt(
        self,
        tokens: Tokens,
        salt: str,
        block_loaders: Sequence[Callable[[], BlockRef]],
        load_snapshot: Callable[[], SnapshotRef],
    ) -> bool:
        """Insert a path loaded from disk: one loader per block. Returns False when it does not fit or is there."""
        step = self._info.block_tokens
        if self.match(tokens, salt=salt).length == len(tokens):
            return False
        node = self._root(salt)
        pinned: list[Node] = []
        for start, load in zip(range(0, len(tokens), step), block_loaders, strict=True):
            window = tokens[start : start + step]
            below = self._covering(node, window)
            if below is None:
                if not self._make_room(len(window)):
                    break
                below = self._insert(node, window, load(), Retention())
            below.pins += 1
            pinned.append(below)
            node = below
        done = node.end >= len(tokens) and self._room_for_snapshot()
        if done:
            self._add_entry(node, len(tokens), load_snapshot(), "shared", Retention(), self._clock())
        for below in pinned:
            below.pins -= 1
        return done

    def shared_snapshots(self) -> Iterator[tuple[str, SnapshotEntry]]:
        """(salt, entry) of snapshots at points where prompts part: what is worth keeping across restarts."""
        for salt, root in self._roots.items():
            for node in walk(root):
                for entry in node.snapshots.values():
                    if entry.kind == "shared":
                        yield salt, entry

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken (for tests)."""
        blocks = snapshots = 0
        tokens = 0
        for root in self._roots.values():
            for node in walk(root):
                assert node.parent is not None
                assert node.block is not None
                assert node.start == node.parent.end
                assert 0 < len(node.tokens) <= self._info.block_tokens
                assert not node.children or len(node.tokens) == self._info.block_tokens
                assert node.pins >= 0
                siblings = [other for other in node.parent.children[int(node.tokens[0])] if other is not node]
                assert all(common(node.tokens, other.tokens) < len(node.tokens) for other in siblings)
                for offset, entry in node.snapshots.items():
                    assert node.start < offset <= node.end
                    assert self._entries[entry.ref] is entry
                    snapshots += 1
                blocks += 1
                tokens += len(node.tokens)
        assert blocks == self.stats.blocks
        assert snapshots == self.stats.snapshots == len(self._entries)
        assert self.stats.block_bytes == self._bytes(tokens) <= max(self._budgets[0], 0)
        assert self.stats.snapshot_bytes == snapshots * self._info.snapshot_bytes <= max(self._budgets[1], 0)

    def _root(self, salt: str) -> Node:
        if salt not in self._roots:
            self._roots[salt] = Node(None, 0, np.empty(0, np.int32), None, path_hash(salt, np.empty(0, np.int32)))
        return self._roots[salt]

    def _bytes(self, tokens: int) -> int:
        return tokens * (self._info.block_bytes // self._info.block_tokens)

    @staticmethod
    def _covering(node: Node, window: NDArray[np.int32]) -> Node | None:
        """The child that holds all of `window`."""
        for child in node.children.get(int(window[0]), ()):
            if len(child.tokens) >= len(window) and common(child.tokens, window) == len(window):
                return child
        return None

    def _descend(self, node: Node, window: Tokens, slot: int, retention: Retention) -> Node | None:
        """The child for `window`, made or grown from the slot when needed; None when it does not fit."""
        child = self._covering(node, window)
        if child is not None:
            return child
        shorter = next(
            (c for c in node.children.get(int(window[0]), ()) if common(c.tokens, window) == len(c.tokens)), None
        )
        held = node if shorter is None else shorter
        held.pins += 1
        try:
            if not self._make_room(len(window) - (len(shorter.tokens) if shorter is not None else 0)):
                return None
            start = node.end
            block = self._executor.publish(slot, start, start + len(window))
        finally:
            held.pins -= 1
        if shorter is None:
            return self._insert(node, window, block, retention)
        old = shorter.block
        assert old is not None
        self._executor.free_block(old)
        self.stats.block_bytes += self._bytes(len(window) - len(shorter.tokens))
        shorter.block, shorter.tokens = block, window.copy()
        shorter.hash = path_hash(node.hash, shorter.tokens)
        self._emit("updated", "block", shorter, shorter.end)
        return shorter

    def _insert(self, parent: Node, window: Tokens, block: BlockRef, retention: Retention) -> Node:
        tokens = window.copy()
        child = Node(
            parent, parent.end, tokens, block, path_hash(parent.hash, tokens), self._clock(), retention=retention
        )
        parent.attach(child)
        self.stats.blocks += 1
        self.stats.block_bytes += self._bytes(len(tokens))
        self._emit("stored", "block", child, child.end)
        return child

    def _keep_snapshot(
        self, node: Node, end: int, slot: int, kind: SnapshotKind, retention: Retention, now: float
    ) -> bool:
        present = node.snapshots.get(end)
        if present is not None:
            present.used, present.superseded = now, False
            if kind == "shared":
                present.kind = kind
            if retention.effective(now) > present.retention.effective(now):
                present.retention = retention
            return True
        node.pins += 1
        fits = self._room_for_snapshot()
        node.pins -= 1
        if not fits:
            self.stats.refused += 1
            return False
        self._supersede(node, end)
        self._add_entry(node, end, self._executor.snapshot(slot), kind, retention, now)
        return True

    def _add_entry(
        self, node: Node, offset: int, ref: SnapshotRef, kind: SnapshotKind, retention: Retention, now: float
    ) -> None:
        entry = SnapshotEntry(ref, offset, kind, node, now, retention)
        node.snapshots[offset] = self._entries[ref] = entry
        self.stats.snapshots += 1
        self.stats.snapshot_bytes += self._info.snapshot_bytes
        self._emit("stored", "snapshot", node, offset)

    @staticmethod
    def _supersede(node: Node, end: int) -> None:
        """Mark the nearest earlier snapshot of the same line (no branch between) as of less value."""
        current: Node | None = node
        while current is not None and current.parent is not None:
            earlier = [entry for offset, entry in current.snapshots.items() if offset < end]
            if earlier:
                last = max(earlier, key=lambda entry: entry.offset)
                last.superseded = last.kind != "shared"
                return
            current = current.parent
            if current.parent is not None and sum(map(len, current.children.values())) > 1:
                return

    def _make_room(self, tokens: int) -> bool:
        """Evict blocks until `tokens` more fit."""
        needed = self._bytes(tokens)
        if needed > self._budgets[0]:
            return False
        while self.stats.block_bytes + needed > self._budgets[0]:
            now = self._clock()
            leaves = [
                node for root in self._roots.values() for node in walk(root) if not node.children and not node.pins
            ]
            if not leaves:
                return False
            # Deepest-first within one path comes by itself: only leaves are candidates.
            self._remove_leaf(min(leaves, key=lambda node: self._leaf_value(node, now)))
        return True

    @staticmethod
    def _leaf_value(node: Node, now: float) -> tuple[bool, int, float]:
        """Lowest goes first: blocks that no snapshot makes restorable, then priority, then recency."""
        priority = max(
            [node.retention.effective(now), *(entry.retention.effective(now) for entry in node.snapshots.values())]
        )
        return bool(node.snapshots), priority, node.used

    def _room_for_snapshot(self) -> bool:
        size, budget = self._info.snapshot_bytes, self._budgets[1]
        if size > budget:
            return False
        while self.stats.snapshot_bytes + size > budget:
            now = self._clock()
            if not self._entries:
                return False
            self._remove_snapshot(
                min(
                    self._entries.values(),
                    key=lambda entry: (entry.retention.effective(now), not entry.superseded, entry.used),
                )
            )
            self.stats.evicted_snapshots += 1
        return True

    def _remove_snapshot(self, entry: SnapshotEntry) -> None:
        del entry.node.snapshots[entry.offset]
        del self._entries[entry.ref]
        self._executor.free_snapshot(entry.ref)
        self.stats.snapshots -= 1
        self.stats.snapshot_bytes -= self._info.snapshot_bytes
        self._emit("removed", "snapshot", entry.node, entry.offset)

    def _remove_leaf(self, node: Node) -> None:
        for entry in list(node.snapshots.values()):
            self._remove_snapshot(entry)
            self.stats.evicted_snapshots += 1
        assert node.parent is not None
        assert node.block is not None
        node.parent.detach(node)
        self._free_block(node, node.block)
        self.stats.evicted_blocks += 1

    def _free_block(self, node: Node, block: BlockRef) -> None:
        self._executor.free_block(block)
        node.block = None
        self.stats.blocks -= 1
        self.stats.block_bytes -= self._bytes(len(node.tokens))
        self._emit("removed", "block", node, node.end)

    def _emit(self, action: str, kind: str, node: Node, end: int) -> None:
        parent = node.parent.hash if node.parent is not None else ""
        self.events.emit(CacheEvent(action, kind, node.hash, parent, node.start, end))  # type: ignore[arg-type]
