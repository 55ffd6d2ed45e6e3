"""What the cache holds: blocks and snapshots in their trees, counted against their budgets, announced as they change.

What must stay true: counts never exceed the budgets, nor what is retained above the default its share of them; each
reference belongs to one node or snapshot and is freed with it; only leaves are removed, and nothing that is pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from edgellm.cache.events import CacheEvent, Created, EventBus, Item, RemovalReason, Removed, Stored, Updated
from edgellm.cache.eviction import Coming, block_victims, snapshot_victim
from edgellm.cache.keys import path_hash, unpack
from edgellm.cache.policy import SnapshotKind
from edgellm.cache.retention import DEFAULT_PRIORITY, Retention, Tally
from edgellm.cache.tree import Node, Snapshot, walk
from edgellm.engine.base import BlockRef, ExecutorInfo, SnapshotRef


class Holder(Protocol):
    """What blocks and snapshots are held in: the part of an executor that a pool needs."""

    @property
    def info(self) -> ExecutorInfo: ...

    def free_block(self, ref: BlockRef) -> None: ...

    def free_snapshot(self, ref: SnapshotRef) -> None: ...


class Pool:
    """See the module's docstring. `retained_share` of either budget may be retained above the default."""

    def __init__(
        self,
        holder: Holder,
        block_budget: int,
        snapshot_budget: int,
        clock: Callable[[], float],
        events: EventBus,
        *,
        retained_share: float = 1.0,
    ) -> None:
        info = holder.info
        self.holder = holder
        self.block_tokens = info.block_tokens
        self.max_blocks = block_budget // max(info.block_bytes, 1)
        self.max_snapshots = snapshot_budget // max(info.snapshot_bytes, 1)
        self.roots: dict[bytes, Node] = {}  # by the salt's digest
        self.leaves: dict[Node, None] = {}  # in order of appearance: eviction is deterministic
        self.snapshots: dict[Snapshot, None] = {}
        self.n_blocks = 0
        self.block_tally = Tally(int(retained_share * self.max_blocks))
        self.snapshot_tally = Tally(int(retained_share * self.max_snapshots))
        self.removed: Counter[str] = Counter()  # "evicted block", "cleared snapshot", …
        self._clock = clock
        self._events = events
        self._tick = 0
        if events.active:
            events.emit(self._created())

    def next_tick(self) -> int:
        """Recency is counted in uses, not in seconds."""
        self._tick += 1
        return self._tick

    def root(self, namespace: bytes) -> Node:
        """The root of a salt, made when absent."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(None, b"", None, namespace)
        return root

    def drop_if_empty(self, node: Node) -> None:
        """Forget a root that has nothing below it and that no lease holds."""
        if node.parent is None and not node.nodes and not node.pins:
            del self.roots[node.hash]

    def add_block(self, parent: Node, data: bytes, block: BlockRef, retention: Retention) -> Node:
        """A new child of `parent`. There is room (`make_block_room`), and no child covers or begins `data`."""
        node = Node(parent, data, block, path_hash(parent.hash, data))
        node.retention = self.block_tally.allowed(retention, None, self._clock())
        self.block_tally.add(node.retention)
        parent.add(node)
        self.leaves.pop(parent, None)
        self.leaves[node] = None
        self.n_blocks += 1
        self._announce(node)
        return node

    def replace_block(self, node: Node, data: bytes, block: BlockRef) -> None:
        """Let a longer block of the same path take the place of a partial one."""
        parent, old = node.parent, node.block
        assert parent is not None
        assert old is not None
        if self._events.active:
            self._events.emit(_removed(node, "replaced"))
        parent.remove(node)
        node.data, node.block, node.hash = data, block, path_hash(parent.hash, data)
        parent.add(node)
        self.holder.free_block(old)
        self._announce(node)

    def add_snapshot(
        self,
        node: Node,
        data: bytes,
        kind: SnapshotKind,
        make: Callable[[], SnapshotRef],
        retention: Retention,
        now: float,
    ) -> None:
        """Take a snapshot behind the tokens `data` of `node`'s block, once `snapshot_room_possible` said so."""
        base = node.parent
        assert base is not None
        while len(self.snapshots) >= self.max_snapshots:
            victim = snapshot_victim(self.snapshots, Coming(base, data), now)
            assert victim is not None
            self.remove_snapshot(victim, "evicted")
        ref = make()
        snapshot = Snapshot(ref, kind, base, data, node, self.snapshot_tally.allowed(retention, None, now), node.used)
        self.snapshot_tally.add(snapshot.retention)
        base.snapshots[data] = snapshot
        node.carried.add(snapshot)
        self.snapshots[snapshot] = None
        self._announce(snapshot)

    def snapshot_room_possible(self) -> bool:
        """Whether there is room for one more snapshot, or one that nobody is about to restore."""
        return self.max_snapshots > sum(1 for snapshot in self.snapshots if snapshot.pins)

    def make_block_room(self, count: int, pinned: Iterable[Node | None], now: float) -> bool:
        """Evict until `count` more blocks fit beside what is pinned; nothing when even that would not do."""
        if self.n_blocks + count <= self.max_blocks:
            return True
        held: set[Node] = set()
        for node in pinned:
            while node is not None and node.parent is not None and node not in held:
                held.add(node)
                node = node.parent
        if len(held) + count > self.max_blocks:
            return False
        for node in block_victims(self.leaves, now):
            self.remove_block(node, "evicted")
            if self.n_blocks + count <= self.max_blocks:
                break
        return True

    def remove_block(self, node: Node, reason: RemovalReason) -> None:
        """Remove a leaf; its snapshots move to a sibling that can carry them, or go too."""
        parent, block = node.parent, node.block
        assert parent is not None
        assert block is not None
        for snapshot in list(node.carried):
            low, high = parent.starting_with(snapshot.data)
            other = next((sibling for sibling in parent.nodes[low:high] if sibling is not node), None)
            if other is None:
                self.remove_snapshot(snapshot, reason)
            else:
                snapshot.carrier = other
                other.carried.add(snapshot)
        parent.remove(node)
        parent.used = max(parent.used, node.used)
        del self.leaves[node]
        if parent.parent is not None and not parent.nodes:
            self.leaves[parent] = None
        self.holder.free_block(block)
        self.block_tally.remove(node.retention)
        self.n_blocks -= 1
        self.removed[f"{reason} block"] += 1
        if self._events.active:
            self._events.emit(_removed(node, reason))
        self.drop_if_empty(parent)

    def remove_snapshot(self, snapshot: Snapshot, reason: RemovalReason) -> None:
        del snapshot.base.snapshots[snapshot.data]
        snapshot.carrier.carried.discard(snapshot)
        del self.snapshots[snapshot]
        self.holder.free_snapshot(snapshot.ref)
        self.snapshot_tally.remove(snapshot.retention)
        self.removed[f"{reason} snapshot"] += 1
        if self._events.active:
            self._events.emit(_removed(snapshot, reason))

    def retained(self, item: Node | Snapshot) -> bool:
        """Whether it is kept above the default now."""
        return item.retention.at(self._clock()) > DEFAULT_PRIORITY

    def raise_retention(self, item: Node | Snapshot, retention: Retention, now: float) -> None:
        """Keep the stronger of what `item` has and `retention`."""
        stronger = item.retention.raised_by(retention, now)
        if stronger is not item.retention:
            self.set_retention(item, stronger)

    def set_retention(self, item: Node | Snapshot, retention: Retention) -> None:
        """Up or down; up only as far as the retained share allows."""
        now = self._clock()
        tally = self.snapshot_tally if isinstance(item, Snapshot) else self.block_tally
        retention = tally.allowed(retention, item.retention, now)
        tally.remove(item.retention)
        tally.add(retention)
        old, new = item.retention.at(now), retention.at(now)
        item.retention = retention
        if old != new and self._events.active:
            self._events.emit(Updated(_item(item), _number(item.hash), *_range(item), old, new))

    def describe(self) -> list[CacheEvent]:
        """Events that would lead to the present content: for a subscriber that starts late."""
        events: list[CacheEvent] = [self._created()]
        for root in self.roots.values():
            for node in walk(root):
                events.append(self._stored(node))
                events.extend(self._stored(snapshot) for snapshot in node.carried)
        return events

    def _created(self) -> Created:
        return Created(self.block_tokens, self.max_blocks, self.max_snapshots)

    def _announce(self, item: Node | Snapshot) -> None:
        if self._events.active:
            self._events.emit(self._stored(item))

    def _stored(self, item: Node | Snapshot) -> Stored:
        above = item.base if isinstance(item, Snapshot) else item.parent
        assert above is not None
        root = above
        while root.parent is not None:
            root = root.parent
        tokens = () if isinstance(item, Snapshot) else unpack(item.data)
        return Stored(
            _item(item),
            _number(item.hash),
            None if above.parent is None else _number(above.hash),
            _number(root.hash[:8]),
            *_range(item),
            tokens,
            item.retention.at(self._clock()),
        )


def _item(item: Node | Snapshot) -> Item:
    return "snapshot" if isinstance(item, Snapshot) else "block"


def _number(name: bytes) -> int:
    return int.from_bytes(name, "big")


def _range(item: Node | Snapshot) -> tuple[int, int]:
    return (item.offset, item.offset) if isinstance(item, Snapshot) else (item.start, item.end)


def _removed(item: Node | Snapshot, reason: RemovalReason) -> Removed:
    return Removed(_item(item), _number(item.hash), *_range(item), reason)
