"""The prefix cache: which prompts can be restored, what is kept, and what goes when memory is short.

Keys are token ids under a salt; nothing is shared across salts. KV rows of a block are valid for any prefix of its
tokens, so a prompt may leave a cached path inside a block; a recurrent state is valid only at its exact offset. A hit
is therefore the deepest snapshot on the longest path that agrees, and restores whole blocks, a partial one and state.

What must stay true (`check` tests it): counts never exceed the two byte budgets, nor what is retained above the default
its share of them; what a lease holds, and everything
above it, is not evicted; each executor reference belongs to one node or snapshot and is freed with it. One thread uses
a cache; `stats` may be read from any.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from edgellm.cache.check import check_tree
from edgellm.cache.events import CacheEvent, EventBus
from edgellm.cache.eviction import block_victims
from edgellm.cache.keys import TokenKey, Tokens, salt_digest
from edgellm.cache.lease import Lease, block_refs
from edgellm.cache.policy import SnapshotKind
from edgellm.cache.pool import Pool
from edgellm.cache.retention import DEFAULT, HIGHEST_PRIORITY, Retention, RetentionPlan
from edgellm.cache.stats import CacheStats, bytes_by_priority
from edgellm.cache.tree import Node, Snapshot, search
from edgellm.engine.base import BlockRef, Executor, SnapshotRef

_NOTHING_ASKED = RetentionPlan()


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens can be restored; `matched` >= length agree with a cached path, with or without a snapshot."""

    length: int
    matched: int


class Wanted(NamedTuple):
    """A snapshot to take: the rule that asks for it, how to make it, and its retention if it is new."""

    kind: SnapshotKind
    make: Callable[[], SnapshotRef]
    retention: Retention


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """References of a prefix that ends at a snapshot. Valid until the cache changes."""

    blocks: tuple[BlockRef, ...]
    snapshot: SnapshotRef
    retention: Retention


class PrefixCache:
    """See the module's docstring.

    Args:
        executor: where blocks and snapshots live; only its references are handled here.
        block_budget_bytes, snapshot_budget_bytes: each block counts `info.block_bytes`, full or not; 0 keeps nothing.
        retained_share: of either budget that may have a priority above the default; a raise beyond it is not granted.
        clock: seconds, for retention durations only. Recency is counted in look-ups.
        events: where changes are announced.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        block_budget_bytes: int,
        snapshot_budget_bytes: int,
        retained_share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        events: EventBus | None = None,
    ) -> None:
        self.executor = executor
        self.events = events if events is not None else EventBus()
        self._clock = clock
        self._budgets = (block_budget_bytes, snapshot_budget_bytes)
        self.pool = Pool(
            executor, block_budget_bytes, snapshot_budget_bytes, clock, self.events, retained_share=retained_share
        )
        self._block_tokens = executor.info.block_tokens
        self._leases: set[Lease] = set()
        self._count: Counter[str] = Counter()

    # -- look-up

    def match(self, tokens: Tokens, *, salt: str = "", limit: int | None = None) -> Match:
        """What could be restored of tokens[:limit]. Changes nothing."""
        root = self.pool.roots.get(salt_digest(salt))
        if root is None:
            return Match(0, 0)
        found = search(root, _limited(TokenKey(tokens), limit), self._block_tokens)
        return Match(0 if found.snapshot is None else found.snapshot.offset, found.matched)

    def acquire(self, tokens: Tokens, *, salt: str = "", limit: int | None = None) -> Lease:
        """Find and hold the best prefix of tokens[:limit]; `limit=0` reads nothing. Every lease must be released."""
        key, namespace = TokenKey(tokens), salt_digest(salt)
        root = self.pool.root(namespace)
        limited = _limited(key, limit)
        found = search(root, limited, self._block_tokens)
        lease = Lease(namespace, key.data, found.matched, found.snapshot, root)
        self._leases.add(lease)
        self._count["lookups"] += 1
        self._count["looked_up_tokens"] += len(limited)
        if found.snapshot is not None:
            found.snapshot.used = found.snapshot.carrier.used = self.pool.next_tick()
            self._count["hits"] += 1
            self._count["restored_tokens"] += lease.length
        return lease

    def release(self, lease: Lease) -> None:
        """End the hold. Releasing again does nothing."""
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        lease.restored()
        node = lease.pinned
        assert node is not None
        lease.pinned = None
        node.pins -= 1
        self.pool.drop_if_empty(node)

    # -- changes

    def store(
        self,
        lease: Lease,
        tokens: Tokens,
        end: int,
        *,
        slot: int,
        snapshot: SnapshotKind | None,
        retention: RetentionPlan = _NOTHING_ASKED,
    ) -> bool:
        """Keep tokens[:end], which `slot` has committed, and move the lease's hold to that path.

        Args:
            tokens: must begin like the tokens of the lease.
            end: committed tokens to keep; with `snapshot` the slot's length must be exactly this.
            snapshot: which rule asks for a snapshot at `end`; None: blocks only.
            retention: what the request asks for its tokens: `over` a block, `state_at` a snapshot. Never lowers what
                others set.

        Returns:
            False when it does not fit in the budgets, with everything evictable gone: then nothing was evicted or
            stored. Tokens that are cached already cost nothing and are not published again.

        Raises:
            ValueError: the lease was released, `end` is out of range, or the tokens contradict the lease.
        """
        key = TokenKey(tokens)
        if lease not in self._leases:
            raise ValueError("store with a lease that was released")
        if not 0 <= end <= len(key):
            raise ValueError(f"end {end} of {len(key)} tokens")
        shared = min(len(lease.data), len(key.data))
        if lease.data[:shared] != key.data[:shared]:
            raise ValueError("the tokens do not continue those of the lease")
        if len(key.data) > len(lease.data):
            lease.data = key.data
        now = self._clock()
        key = TokenKey.from_bytes(key[:end])
        self.keep(key, retention, namespace=lease.namespace)
        wanted = None
        if snapshot is not None:
            wanted = Wanted(snapshot, lambda: self.executor.snapshot(slot), retention.state_at(end, now))
        return self.grow(
            lease,
            key,
            lambda start, stop: self.executor.publish(slot, start, stop),
            wanted,
            lambda start, stop: retention.over(start, stop, now),
        )

    def adopt(
        self,
        key: TokenKey,
        namespace: bytes,
        load_block: Callable[[int], BlockRef],
        load_snapshot: Callable[[], SnapshotRef],
        *,
        retention: Retention = DEFAULT,
    ) -> bool:
        """Insert a prefix that is not in a slot: `load_block(i)` gives the block at tokens i * block_tokens.

        Blocks and a snapshot that are there already are not loaded. Returns False when it does not fit.
        """
        with self.holding(namespace) as lease:
            self._raise(key, namespace, lambda start, stop: retention, lambda offset: retention)
            return self.grow(
                lease,
                key,
                lambda start, stop: load_block(start // self._block_tokens),
                Wanted("shared", load_snapshot, retention),
                lambda start, stop: retention,
            )

    def keep(self, tokens: Tokens, retention: RetentionPlan, *, namespace: bytes) -> None:
        """Raise what is cached of `tokens` to what a request asks for them, as `store` does."""
        now = self._clock()
        self._raise(
            TokenKey(tokens),
            namespace,
            lambda start, stop: retention.over(start, stop, now),
            lambda offset: retention.state_at(offset, now),
        )

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
        if not 0 <= priority <= HIGHEST_PRIORITY:
            raise ValueError(f"priority {priority} is not in 0-{HIGHEST_PRIORITY}")
        key = _limited(TokenKey(tokens), end)
        retention = Retention(priority, None if duration_s is None else self._clock() + duration_s)
        node: Node | None = self.pool.roots.get(salt_digest(salt))
        changed = 0
        while node is not None and node.end < len(key):
            part = key[node.end : node.end + self._block_tokens]
            for snapshot in node.snapshots_on(part):
                if snapshot.offset > start:
                    self.pool.set_retention(snapshot, retention)
                    changed += 1
            node = node.covering(part) or node.shorter(part)
            if node is not None and node.end > start:
                self.pool.set_retention(node, retention)
                changed += 1
        return changed

    def clear(self) -> None:
        """Free everything that no lease holds."""
        for node in block_victims(self.pool.leaves, self._clock()):
            self.pool.remove_block(node, "cleared")
        for snapshot in [snapshot for snapshot in self.pool.snapshots if not snapshot.pins]:
            self.pool.remove_snapshot(snapshot, "cleared")

    # -- what is there

    def find(self, tokens: Tokens, *, salt: str = "") -> CachedPrefix | None:
        """The references of a prefix that has a snapshot at exactly its length."""
        key = TokenKey(tokens)
        found = self.find_snapshot(key, salt_digest(salt))
        if found is None or found.offset != len(key):
            return None
        return CachedPrefix(block_refs(found.carrier), found.ref, found.retention)

    def stats(self) -> CacheStats:
        info, count, pool, now = self.executor.info, self._count, self.pool, self._clock()
        return CacheStats(
            lookups=count["lookups"],
            hits=count["hits"],
            looked_up_tokens=count["looked_up_tokens"],
            restored_tokens=count["restored_tokens"],
            refused=count["refused"],
            evicted_blocks=pool.removed["evicted block"],
            evicted_snapshots=pool.removed["evicted snapshot"],
            leases=len(self._leases),
            blocks=pool.n_blocks,
            snapshots=len(pool.snapshots),
            block_bytes=pool.n_blocks * info.block_bytes,
            snapshot_bytes=len(pool.snapshots) * info.snapshot_bytes,
            block_budget_bytes=self._budgets[0],
            snapshot_budget_bytes=self._budgets[1],
            block_bytes_by_priority=bytes_by_priority(pool.block_tally, info.block_bytes, now),
            snapshot_bytes_by_priority=bytes_by_priority(pool.snapshot_tally, info.snapshot_bytes, now),
            clipped=pool.block_tally.clipped + pool.snapshot_tally.clipped,
        )

    def describe(self) -> list[CacheEvent]:
        """Events that would lead to the present content: for a subscriber that starts late."""
        return self.pool.describe()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        counts = check_tree(self.pool.roots, self.pool.leaves, self._block_tokens)
        assert counts.blocks == self.pool.n_blocks <= max(self.pool.max_blocks, 0)
        assert counts.snapshots == set(self.pool.snapshots)
        assert len(self.pool.snapshots) <= max(self.pool.max_snapshots, 0)
        now = self._clock()
        for tally, kept in (
            (self.pool.block_tally, counts.block_retentions),
            (self.pool.snapshot_tally, Counter(snapshot.retention for snapshot in counts.snapshots)),
        ):
            assert tally.counts == kept, "the tally of retentions is wrong"
            assert tally.raised(now) <= tally.limit, "more is retained than the share allows"
        held = Counter(lease.pinned for lease in self._leases)
        assert counts.pinned == held, "pins differ from the leases' holds"
        restoring = Counter(lease.restoring for lease in self._leases if lease.restoring is not None)
        assert {s: s.pins for s in self.pool.snapshots if s.pins} == dict(restoring)
        assert all(lease.pinned is lease.restoring.carrier for lease in self._leases if lease.restoring is not None)

    # -- for those that move whole paths, `adopt` and `transfer`

    def find_snapshot(self, key: TokenKey, namespace: bytes) -> Snapshot | None:
        """The deepest snapshot that agrees with `key`."""
        root = self.pool.roots.get(namespace)
        return None if root is None else search(root, key, self._block_tokens).snapshot

    def grow(
        self,
        lease: Lease,
        key: TokenKey,
        make_block: Callable[[int, int], BlockRef],
        wanted: Wanted | None,
        retention: Callable[[int, int], Retention],
    ) -> bool:
        """Make the path of `key` complete, blocks first, then the snapshot at its end; hold it with `lease`.

        What is there already stays as it is. False when there is no room; then nothing was evicted or added.

        Args:
            make_block: the reference of a block of tokens [start, stop).
            wanted: the snapshot; None: blocks only.
            retention: of a new block of tokens [start, stop).
        """
        end, size, now = len(key), self._block_tokens, self._clock()
        lease.restored()
        if end == 0:
            return True
        node = self.pool.root(lease.namespace)
        while node.end < end:
            child = node.covering(key[node.end : min(node.end + size, end)])
            if child is None:
                break
            node = child
        missing = -(-(end - node.end) // size) if node.end < end else 0
        shorter = node.shorter(key[node.end : min(node.end + size, end)]) if missing else None
        keep = shorter or node  # beside what the lease holds, which may carry its last snapshot, until it has grown
        # A longer block exists beside the shorter one until it has replaced it.
        room = max(missing - 1, 1) if shorter is not None else missing
        at_end = None
        if not missing and node.parent is not None:
            at_end = node.parent.snapshots.get(key[node.parent.end :])
        if wanted is not None and at_end is None and not self.pool.snapshot_room_possible():
            self._count["refused"] += 1
            return False
        keep.pins += 1
        try:
            fits = self.make_room(room, keep)
        finally:
            keep.pins -= 1
        if not fits:
            self._count["refused"] += 1
            return False
        lease.hold(keep)
        for _ in range(missing):
            start, stop = node.end, min(node.end + size, end)
            data = key[start:stop]
            shorter = node.shorter(data)
            block = make_block(start, stop)
            if shorter is None:
                node = self.pool.add_block(node, data, block, retention(start, stop))
            else:
                self.pool.replace_block(shorter, data, block)
                node = shorter
                self.pool.raise_retention(node, retention(start, stop), now)
            lease.hold(node)
        node.used = self.pool.next_tick()
        if wanted is None:
            return True
        if at_end is not None:
            at_end.used = node.used
            if wanted.kind == "shared":
                at_end.kind = wanted.kind
            return True
        assert node.parent is not None
        self.pool.add_snapshot(node, key[node.parent.end :], wanted.kind, wanted.make, wanted.retention, now)
        return True

    def make_room(self, blocks: int, *besides: Node) -> bool:
        """Evict until so many more blocks fit; False, and nothing is evicted, when what is held leaves no such room."""
        held = (lease.pinned for lease in self._leases)
        return self.pool.make_block_room(blocks, [*besides, *held], self._clock())

    @contextmanager
    def holding(self, namespace: bytes, node: Node | None = None) -> Iterator[Lease]:
        """A lease that holds `node`, or nothing yet, for a salt known only by its digest."""
        root = self.pool.root(namespace)
        lease = Lease(namespace, b"", 0, None, root)
        self._leases.add(lease)
        try:
            if node is not None:
                lease.hold(node)
            yield lease
        finally:
            self.release(lease)

    def _raise(
        self,
        key: TokenKey,
        namespace: bytes,
        of_block: Callable[[int, int], Retention],
        of_snapshot: Callable[[int], Retention],
    ) -> None:
        """Raise blocks of tokens [start, stop) and snapshots at an offset on the path of `key`."""
        end, now = len(key), self._clock()
        node: Node | None = self.pool.roots.get(namespace)
        while node is not None and node.end < end:
            part = key[node.end : min(node.end + self._block_tokens, end)]
            for held in node.snapshots_on(part):
                self.pool.raise_retention(held, of_snapshot(held.offset), now)
            node = node.covering(part)
            if node is not None:
                self.pool.raise_retention(node, of_block(node.start, min(node.end, end)), now)


def _limited(key: TokenKey, limit: int | None) -> TokenKey:
    return key if limit is None or limit >= len(key) else TokenKey.from_bytes(key[: max(limit, 0)])
