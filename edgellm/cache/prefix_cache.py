"""The prefix cache: which prompts can be restored, what is kept, and what goes when memory is short.

Keys are token ids under a salt; nothing is shared across salts. KV rows of a block are valid for any prefix of its
tokens, so a prompt may leave a cached path inside a block; a recurrent state is valid only at its exact offset. A hit
is therefore the deepest snapshot on the longest path that agrees, and restores whole blocks, a partial one and state.

What must stay true (`check` tests it): counts never exceed the two byte budgets; what a lease holds, and everything
above it, is not evicted; each executor reference belongs to one node or snapshot and is freed with it. One thread uses
a cache; `stats` may be read from any.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from edgellm.cache.check import check_tree
from edgellm.cache.events import CacheEvent, Created, EventBus, Item, RemovalReason, Removed, Stored, Updated
from edgellm.cache.eviction import block_victims, snapshot_victim
from edgellm.cache.keys import TokenKey, Tokens, path_hash, salt_digest, unpack
from edgellm.cache.policy import SnapshotKind
from edgellm.cache.tree import Node, Retention, Snapshot, search, walk
from edgellm.engine.base import BlockRef, Executor, SnapshotRef


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens can be restored; `matched` >= length agree with a cached path, with or without a snapshot."""

    length: int
    matched: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Totals since start, and what is held now."""

    lookups: int  # acquire() calls
    hits: int  # those that restored something
    restored_tokens: int
    refused: int  # stores that did not fit
    evicted_blocks: int
    evicted_snapshots: int
    leases: int
    blocks: int
    snapshots: int
    block_bytes: int
    snapshot_bytes: int
    block_budget_bytes: int
    snapshot_budget_bytes: int

    @property
    def misses(self) -> int:
        return self.lookups - self.hits


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """References of a prefix that ends at a snapshot. Valid until the cache changes."""

    blocks: tuple[BlockRef, ...]
    snapshot: SnapshotRef
    retention: Retention


class Lease:
    """A sequence's hold on the cache.

    From `acquire` until the first `store` it keeps what is to be restored; from then on the path that it has stored.
    `length` tokens are restored and `matched` ones agree with a cached path.
    """

    __slots__ = ("_data", "_pinned", "_snapshot", "length", "matched", "namespace")

    def __init__(self, namespace: bytes, data: bytes, matched: int, snapshot: Snapshot | None, pinned: Node) -> None:
        self.namespace = namespace  # the salt's digest
        self.length = 0 if snapshot is None else snapshot.offset
        self.matched = matched
        self._data = data  # all tokens seen with this lease
        self._snapshot = snapshot
        self._pinned: Node | None = pinned

    @property
    def blocks(self) -> tuple[BlockRef, ...]:
        """What `Executor.restore` takes. Ask right before restoring: a longer block may have replaced a partial one."""
        if self.length == 0:
            return ()
        return _refs(self._held().carrier)

    @property
    def snapshot(self) -> SnapshotRef | None:
        """What `Executor.restore` takes; None when there is nothing to restore."""
        return None if self.length == 0 else self._held().ref

    def _held(self) -> Snapshot:
        if self._snapshot is None:
            raise ValueError("restore before the first store: the lease no longer holds what it found")
        return self._snapshot


class PrefixCache:
    """See the module's docstring.

    Args:
        executor: where blocks and snapshots live; only its references are handled here.
        block_budget_bytes, snapshot_budget_bytes: each block counts `info.block_bytes`, full or not; 0 keeps nothing.
        clock: seconds, for retention durations only. Recency is counted in look-ups.
        events: where changes are announced.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        block_budget_bytes: int,
        snapshot_budget_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        events: EventBus | None = None,
    ) -> None:
        self.executor = executor
        self.events = events if events is not None else EventBus()
        self._clock = clock
        self._budgets = (block_budget_bytes, snapshot_budget_bytes)
        info = executor.info
        self._block_tokens = info.block_tokens
        self._max_blocks = block_budget_bytes // max(info.block_bytes, 1)
        self._max_snapshots = snapshot_budget_bytes // max(info.snapshot_bytes, 1)
        self._roots: dict[bytes, Node] = {}
        self._leaves: dict[Node, None] = {}  # in order of appearance: eviction is deterministic
        self._snapshots: dict[Snapshot, None] = {}
        self._leases: set[Lease] = set()
        self._n_blocks = 0
        self._tick = 0
        self._count: Counter[str] = Counter()
        if self.events.active:
            self.events.emit(self._created())

    # -- look-up

    def match(self, tokens: Tokens, *, salt: str = "", limit: int | None = None) -> Match:
        """What could be restored of tokens[:limit]. Changes nothing."""
        root = self._roots.get(salt_digest(salt))
        if root is None:
            return Match(0, 0)
        found = search(root, _limited(TokenKey(tokens), limit), self._block_tokens)
        return Match(0 if found.snapshot is None else found.snapshot.offset, found.matched)

    def acquire(self, tokens: Tokens, *, salt: str = "", limit: int | None = None) -> Lease:
        """Find and hold the best prefix of tokens[:limit]; `limit=0` reads nothing. Every lease must be released."""
        key, namespace = TokenKey(tokens), salt_digest(salt)
        root = self._root(namespace)
        found = search(root, _limited(key, limit), self._block_tokens)
        snapshot = found.snapshot
        pinned = root if snapshot is None else snapshot.carrier
        pinned.pins += 1
        self._count["lookups"] += 1
        if snapshot is not None:
            snapshot.pins += 1
            snapshot.used = pinned.used = self._next_tick()
            self._count["hits"] += 1
            self._count["restored_tokens"] += snapshot.offset
        lease = Lease(namespace, key.data, found.matched, snapshot, pinned)
        self._leases.add(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """End the hold. Releasing again does nothing."""
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        self._unpin_snapshot(lease)
        node = lease._pinned
        assert node is not None
        lease._pinned = None
        node.pins -= 1
        self._drop_if_empty(node)

    # -- changes

    def store(
        self,
        lease: Lease,
        tokens: Tokens,
        end: int,
        *,
        slot: int,
        snapshot: SnapshotKind | None,
        priority: int | None = None,
        duration_s: float | None = None,
    ) -> bool:
        """Keep tokens[:end], which `slot` has committed, and move the lease's hold to that path.

        Args:
            tokens: must begin like the tokens of the lease.
            end: committed tokens to keep; with `snapshot` the slot's length must be exactly this.
            snapshot: which rule asks for a snapshot at `end`; None: blocks only.
            priority: retention 0-100 of tokens[:end]; None: the default for what is new. Never lowers what others set.
            duration_s: after this the priority reverts to the default.

        Returns:
            False when it does not fit in the budgets, with everything evictable gone: then nothing was evicted or
            stored. Tokens that are cached already cost nothing and are not published again.

        Raises:
            ValueError: the lease was released, `end` or `priority` is out of range, or the tokens contradict the lease.
        """
        key = TokenKey(tokens)
        if lease not in self._leases:
            raise ValueError("store with a lease that was released")
        if not 0 <= end <= len(key):
            raise ValueError(f"end {end} of {len(key)} tokens")
        shared = min(len(lease._data), len(key.data))
        if lease._data[:shared] != key.data[:shared]:
            raise ValueError("the tokens do not continue those of the lease")
        if len(key.data) > len(lease._data):
            lease._data = key.data
        return self._grow(
            lease,
            TokenKey.from_bytes(key[:end]),
            lambda start, stop: self.executor.publish(slot, start, stop),
            (snapshot, lambda: self.executor.snapshot(slot)) if snapshot is not None else None,
            self._retention(priority, duration_s),
        )

    def adopt(
        self,
        key: TokenKey,
        namespace: bytes,
        load_block: Callable[[int], BlockRef],
        load_snapshot: Callable[[], SnapshotRef],
        *,
        priority: int | None = None,
        duration_s: float | None = None,
    ) -> bool:
        """Insert a prefix that is not in a slot: `load_block(i)` gives the block at tokens i * block_tokens.

        Blocks and a snapshot that are there already are not loaded. Returns False when it does not fit.
        """
        lease = self._hold_root(namespace)
        try:
            return self._grow(
                lease,
                key,
                lambda start, stop: load_block(start // self._block_tokens),
                ("shared", load_snapshot),
                self._retention(priority, duration_s),
            )
        finally:
            self.release(lease)

    def retain(
        self,
        tokens: Tokens,
        *,
        salt: str = "",
        start: int = 0,
        end: int | None = None,
        priority: int,
        duration_s: float | None = None,
    ) -> int:
        """Set the retention of the cached part of tokens[start:end], up or down. Returns blocks and snapshots set."""
        key = _limited(TokenKey(tokens), end)
        retention = self._retention(priority, duration_s)
        assert retention is not None
        node: Node | None = self._roots.get(salt_digest(salt))
        changed = 0
        while node is not None and node.end < len(key):
            part = key[node.end : node.end + self._block_tokens]
            for data, snapshot in node.snapshots.items():
                if snapshot.offset > start and part.startswith(data):
                    self._set_retention(snapshot, retention)
                    changed += 1
            node = node.covering(part) or node.shorter(part)
            if node is not None and node.end > start:
                self._set_retention(node, retention)
                changed += 1
        return changed

    def clear(self) -> None:
        """Free everything that no lease holds."""
        for node in block_victims(self._leaves, self._clock()):
            self._remove_block(node, "cleared")
        for snapshot in [snapshot for snapshot in self._snapshots if not snapshot.pins]:
            self._remove_snapshot(snapshot, "cleared")

    # -- what is there

    def find(self, tokens: Tokens, *, salt: str = "") -> CachedPrefix | None:
        """The references of a prefix that has a snapshot at exactly its length."""
        root, key = self._roots.get(salt_digest(salt)), TokenKey(tokens)
        found = None if root is None else search(root, key, self._block_tokens).snapshot
        if found is None or found.offset != len(key):
            return None
        return CachedPrefix(_refs(found.carrier), found.ref, found.retention)

    def stats(self) -> CacheStats:
        info, count = self.executor.info, self._count
        return CacheStats(
            lookups=count["lookups"],
            hits=count["hits"],
            restored_tokens=count["restored_tokens"],
            refused=count["refused"],
            evicted_blocks=count["evicted_block"],
            evicted_snapshots=count["evicted_snapshot"],
            leases=len(self._leases),
            blocks=self._n_blocks,
            snapshots=len(self._snapshots),
            block_bytes=self._n_blocks * info.block_bytes,
            snapshot_bytes=len(self._snapshots) * info.snapshot_bytes,
            block_budget_bytes=self._budgets[0],
            snapshot_budget_bytes=self._budgets[1],
        )

    def describe(self) -> list[CacheEvent]:
        """Events that would lead to the present content: for a subscriber that starts late."""
        events: list[CacheEvent] = [self._created()]
        for root in self._roots.values():
            events.extend(self._stored(snapshot) for snapshot in root.snapshots.values())
            for node in walk(root):
                events.append(self._stored(node))
                events.extend(self._stored(snapshot) for snapshot in node.snapshots.values())
        return events

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        counts = check_tree(self._roots, self._leaves, self._block_tokens)
        assert counts.blocks == self._n_blocks <= max(self._max_blocks, 0)
        assert counts.snapshots == set(self._snapshots)
        assert len(self._snapshots) <= max(self._max_snapshots, 0)
        held = Counter(lease._pinned for lease in self._leases)
        assert counts.pinned == held, "pins differ from the leases' holds"
        restoring = Counter(lease._snapshot for lease in self._leases if lease._snapshot is not None)
        assert {s: s.pins for s in self._snapshots if s.pins} == dict(restoring)
        assert all(lease._pinned is lease._snapshot.carrier for lease in self._leases if lease._snapshot is not None)

    # -- inside

    def _grow(
        self,
        lease: Lease,
        key: TokenKey,
        make_block: Callable[[int, int], BlockRef],
        wanted: tuple[SnapshotKind, Callable[[], SnapshotRef]] | None,
        retention: Retention | None,
    ) -> bool:
        """Make the path of `key` complete, blocks first, then the snapshot at its end; hold it with `lease`."""
        end, size, now = len(key), self._block_tokens, self._clock()
        self._unpin_snapshot(lease)
        if end == 0:
            return True
        node = self._root(lease.namespace)
        while node.end < end:
            child = node.covering(key[node.end : min(node.end + size, end)])
            if child is None:
                break
            node = child
            self._raise_retention(node, retention, now)
        missing = -(-(end - node.end) // size) if node.end < end else 0
        shorter = node.shorter(key[node.end : min(node.end + size, end)]) if missing else None
        self._pin(lease, shorter or node)
        # A longer block exists beside the shorter one until it has replaced it.
        room = max(missing - 1, 1) if shorter is not None else missing
        at_end = None if missing or wanted is None else self._snapshot_at(node, key)
        if wanted is not None and at_end is None and not self._snapshot_room_possible():
            self._count["refused"] += 1
            return False
        if not self._make_block_room(room, now):
            self._count["refused"] += 1
            return False
        for _ in range(missing):
            start, stop = node.end, min(node.end + size, end)
            data = key[start:stop]
            shorter = node.shorter(data)
            block = make_block(start, stop)
            if shorter is None:
                node = self._insert(node, data, block, retention)
            else:
                self._replace(shorter, data, block)
                node = shorter
                self._raise_retention(node, retention, now)
            self._pin(lease, node)
        node.used = self._next_tick()
        if wanted is None:
            return True
        kind, make_snapshot = wanted
        if at_end is None:
            at_end = self._snapshot_at(node, key)
        if at_end is not None:
            at_end.used = node.used
            self._raise_retention(at_end, retention, now)
            if kind == "shared":
                at_end.kind = kind
            return True
        return self._insert_snapshot(node, key, kind, make_snapshot, retention, now)

    def _hold_root(self, namespace: bytes) -> Lease:
        """A lease that holds nothing yet, for a salt known only by its digest."""
        root = self._root(namespace)
        root.pins += 1
        lease = Lease(namespace, b"", 0, None, root)
        self._leases.add(lease)
        return lease

    def _snapshot_at(self, node: Node, key: TokenKey) -> Snapshot | None:
        """The snapshot at the end of `key`, whose last block is `node`."""
        assert node.parent is not None
        return node.parent.snapshots.get(key[node.parent.end :])

    def _insert(self, parent: Node, data: bytes, block: BlockRef, retention: Retention | None) -> Node:
        node = Node(parent, data, block, path_hash(parent.hash, data))
        node.retention = retention or Retention()
        parent.add(node)
        self._leaves.pop(parent, None)
        self._leaves[node] = None
        self._n_blocks += 1
        self._announce(node)
        return node

    def _replace(self, node: Node, data: bytes, block: BlockRef) -> None:
        """Let a longer block of the same path take the place of a partial one."""
        parent, old = node.parent, node.block
        assert parent is not None
        assert old is not None
        if self.events.active:
            self.events.emit(_removed(node, "replaced"))
        parent.remove(node)
        node.data, node.block, node.hash = data, block, path_hash(parent.hash, data)
        parent.add(node)
        self.executor.free_block(old)
        self._announce(node)

    def _insert_snapshot(
        self,
        node: Node,
        key: TokenKey,
        kind: SnapshotKind,
        make: Callable[[], SnapshotRef],
        retention: Retention | None,
        now: float,
    ) -> bool:
        base = node.parent
        assert base is not None
        while len(self._snapshots) >= self._max_snapshots:
            victim = snapshot_victim(self._snapshots, now)
            if victim is None:
                self._count["refused"] += 1
                return False
            self._remove_snapshot(victim, "evicted")
        data = key[base.end :]
        snapshot = Snapshot(make(), kind, base, data, node, retention or Retention(), node.used)
        base.snapshots[data] = snapshot
        node.carried.add(snapshot)
        self._snapshots[snapshot] = None
        self._announce(snapshot)
        return True

    def _snapshot_room_possible(self) -> bool:
        return self._max_snapshots > sum(1 for snapshot in self._snapshots if snapshot.pins)

    def _make_block_room(self, count: int, now: float) -> bool:
        """Evict until `count` more blocks fit; nothing when even that would not do."""
        if self._n_blocks + count <= self._max_blocks:
            return True
        held: set[Node] = set()
        for lease in self._leases:
            node = lease._pinned
            while node is not None and node.parent is not None and node not in held:
                held.add(node)
                node = node.parent
        if len(held) + count > self._max_blocks:
            return False
        for node in block_victims(self._leaves, now):
            self._remove_block(node, "evicted")
            if self._n_blocks + count <= self._max_blocks:
                break
        return True

    def _remove_block(self, node: Node, reason: RemovalReason) -> None:
        """Remove a leaf; its snapshots move to a sibling that can carry them, or go too."""
        parent, block = node.parent, node.block
        assert parent is not None
        assert block is not None
        for snapshot in list(node.carried):
            low, high = parent.starting_with(snapshot.data)
            other = next((sibling for sibling in parent.nodes[low:high] if sibling is not node), None)
            if other is None:
                self._remove_snapshot(snapshot, reason)
            else:
                snapshot.carrier = other
                other.carried.add(snapshot)
        parent.remove(node)
        parent.used = max(parent.used, node.used)
        del self._leaves[node]
        if parent.parent is not None and not parent.nodes:
            self._leaves[parent] = None
        self.executor.free_block(block)
        self._n_blocks -= 1
        self._count[f"{reason}_block"] += 1
        if self.events.active:
            self.events.emit(_removed(node, reason))
        self._drop_if_empty(parent)

    def _remove_snapshot(self, snapshot: Snapshot, reason: RemovalReason) -> None:
        del snapshot.base.snapshots[snapshot.data]
        snapshot.carrier.carried.discard(snapshot)
        del self._snapshots[snapshot]
        self.executor.free_snapshot(snapshot.ref)
        self._count[f"{reason}_snapshot"] += 1
        if self.events.active:
            self.events.emit(_removed(snapshot, reason))

    def _root(self, namespace: bytes) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", None, namespace)
        return root

    def _drop_if_empty(self, node: Node) -> None:
        if node.parent is None and not node.nodes and not node.pins:
            del self._roots[node.hash]

    def _pin(self, lease: Lease, node: Node) -> None:
        assert lease._pinned is not None
        node.pins += 1
        lease._pinned.pins -= 1
        lease._pinned = node

    @staticmethod
    def _unpin_snapshot(lease: Lease) -> None:
        if lease._snapshot is not None:
            lease._snapshot.pins -= 1
            lease._snapshot = None

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    # -- retention

    def _retention(self, priority: int | None, duration_s: float | None) -> Retention | None:
        if priority is None:
            return None
        if not 0 <= priority <= 100:
            raise ValueError(f"priority {priority} is not in 0-100")
        return Retention(priority, None if duration_s is None else self._clock() + duration_s)

    def _raise_retention(self, item: Node | Snapshot, retention: Retention | None, now: float) -> None:
        if retention is not None:
            self._set_retention(item, item.retention.raised_by(retention, now))

    def _set_retention(self, item: Node | Snapshot, retention: Retention) -> None:
        now = self._clock()
        old, new = item.retention.at(now), retention.at(now)
        item.retention = retention
        if old != new and self.events.active:
            self.events.emit(Updated(_item(item), _number(item.hash), *_range(item), old, new))

    # -- events

    def _created(self) -> Created:
        return Created(self._block_tokens, self._max_blocks, self._max_snapshots)

    def _announce(self, item: Node | Snapshot) -> None:
        if self.events.active:
            self.events.emit(self._stored(item))

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


def _limited(key: TokenKey, limit: int | None) -> TokenKey:
    return key if limit is None or limit >= len(key) else TokenKey.from_bytes(key[: max(limit, 0)])


def _refs(node: Node) -> tuple[BlockRef, ...]:
    return tuple(above.block for above in node.path() if above.block is not None)


def _item(item: Node | Snapshot) -> Item:
    return "snapshot" if isinstance(item, Snapshot) else "block"


def _number(name: bytes) -> int:
    return int.from_bytes(name, "big")


def _range(item: Node | Snapshot) -> tuple[int, int]:
    return (item.offset, item.offset) if isinstance(item, Snapshot) else (item.start, item.end)


def _removed(item: Node | Snapshot, reason: RemovalReason) -> Removed:
    return Removed(_item(item), _number(item.hash), *_range(item), reason)
