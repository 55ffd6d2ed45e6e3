"""Moving cached paths to the second tier and back, a block or a snapshot at a time.

Both ways are generators that yield the bytes of every step, so that the engine can go on in between; the cache may
change there. What must stay true: nothing leaves the cache for the tier before the tier holds everything of it that
could be restored; what others hold, share, or retain above the default priority stays in the cache; a generator that is
closed early holds nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from edgellm.cache.keys import TokenKey, Tokens, salt_digest
from edgellm.cache.lease import Lease
from edgellm.cache.prefix_cache import PrefixCache, Wanted
from edgellm.cache.tier import Hold, NoRoomError, Tier
from edgellm.cache.tree import Node, Snapshot, search
from edgellm.cache.vault import DamagedDump
from edgellm.engine.base import BlockRef, SnapshotRef


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What an offload did.

    Attributes:
        stored: False: the tier has no room for it; then the cache is as it was.
        tokens: of the tokens given, how many the tier can bring back.
        bytes: written to the tier; what it held already costs nothing.
        freed_bytes: of the cache.
        seconds: from the first step to the last.
    """

    stored: bool
    tokens: int
    bytes: int
    freed_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a recall did.

    Attributes:
        tokens: of the tokens given, how many the cache can restore now.
        recalled_tokens: how many of them only thanks to the tier.
        bytes: read from the tier.
        seconds: from the first step to the last.
    """

    tokens: int
    recalled_tokens: int
    bytes: int
    seconds: float


def offload(cache: PrefixCache, tier: Tier, tokens: Tokens, *, salt: str = "") -> Generator[int, None, Offloaded]:
    """Copy the cached path of `tokens` with its snapshots to the tier, then free what only this path needs.

    The path ends with the block in which `tokens` end, so give a conversation's committed tokens, its last answer
    included if that is cached.
    """
    started = time.perf_counter()
    key, namespace = TokenKey(tokens), salt_digest(salt)
    moved = freed = 0
    stored = True
    target = _target(cache, key, namespace)
    if target is not None:
        with cache.holding(namespace, target), tier.holding(namespace) as hold:
            try:
                if not _fits(cache, tier, hold.node, target):
                    raise NoRoomError
                while step := (yield from _copy(cache, tier, target, hold)):
                    moved += step
            except NoRoomError:
                stored = False
        tier.count["offloads" if stored else "refused"] += 1
    if stored:
        freed = _free(cache, tier, key, namespace)
    found = tier.find(key, namespace)
    return Offloaded(stored, 0 if found is None else found.offset, moved, freed, time.perf_counter() - started)


def recall(
    cache: PrefixCache, tier: Tier, tokens: Tokens, *, salt: str = "", step_bytes: int = 1 << 25
) -> Generator[int, None, Recalled]:
    """Bring back the longest path of `tokens` that the tier holds, if the cache has not got it.

    Other paths are evicted for its blocks and its deepest snapshot as for those of a request; its earlier snapshots
    come back where there is room for them. The tier keeps its copy.

    Args:
        step_bytes: blocks are brought back in groups of about so many bytes.
    """
    started = time.perf_counter()
    key, namespace = TokenKey(tokens), salt_digest(salt)
    before, moved = cache.match(key, salt=salt).length, 0
    limit = len(key)
    while True:
        found = tier.find(TokenKey.from_bytes(key[:limit]), namespace)
        if found is None or found.offset <= cache.match(key, salt=salt).length:
            break
        bringing = _Bringing(cache, tier, found, namespace, step_bytes)
        try:
            for step in bringing.steps():
                moved += step
                yield step
        except DamagedDump:
            continue  # the tier has dropped it; what stands above may still be good
        limit = found.offset - 1  # for lack of room, if it is not there now
    tokens_now = cache.match(key, salt=salt).length
    gained = max(tokens_now - before, 0)
    tier.count["recalls"] += gained > 0
    tier.count["recalled_tokens"] += gained
    tier.count["recalled_bytes"] += moved
    return Recalled(tokens_now, gained, moved, time.perf_counter() - started)


# -- to the tier


def _end(cache: PrefixCache, key: TokenKey, namespace: bytes) -> Node | None:
    """The deepest block whose tokens are those of `key` at its place, or begin with the last of them."""
    node, end = cache.pool.roots.get(namespace), None
    while node is not None and node.end < len(key):
        part = key[node.end : min(node.end + cache.pool.block_tokens, len(key))]
        node = node.covering(part) or node.shorter(part)
        end = node or end
    return end


def _target(cache: PrefixCache, key: TokenKey, namespace: bytes) -> Node | None:
    """The last block of the path that is worth keeping: nothing behind it can be restored."""
    end, found = _end(cache, key, namespace), cache.find_snapshot(key, namespace)
    if end is not None and end.carried and (found is None or found.carrier.start <= end.start):
        return end
    return None if found is None else found.carrier


def _ending_in(node: Node) -> list[Snapshot]:
    """Snapshots that a path through `node` meets in its block."""
    assert node.parent is not None
    return node.parent.snapshots_on(node.data)


def _fits(cache: PrefixCache, tier: Tier, root: Node, target: Node) -> bool:
    """Whether the path has room in the tier below `root`, whatever else has to go; new dumps count in full size."""
    info, twin, total = cache.executor.info, root, 0
    there = True
    for node in target.path():
        base, covering = twin, twin.covering(node.data) if there else None
        there = covering is not None
        for snapshot in _ending_in(node):
            copy = base.snapshots.get(snapshot.data) if there else None
            total += info.snapshot_bytes if copy is None else tier.size(copy)
        total += info.block_bytes if covering is None else tier.size(covering)
        twin = covering or twin
    return total <= tier.budget_bytes


def _copy(cache: PrefixCache, tier: Tier, target: Node, hold: Hold) -> Generator[int, None, int]:
    """One pass over the path, which is held; returns the bytes that it moved: after 0 the tier has everything."""
    executor, moved, twin = cache.executor, 0, hold.root
    for node in target.path():  # what is there must stay while the rest is added
        copy = twin.covering(node.data)
        if copy is None:
            break
        hold.extend(twin := copy)
    twin = hold.root
    for node in target.path():
        base, covering = twin, twin.covering(node.data)
        if covering is None:
            assert node.block is not None
            dump = executor.dump_block(node.block)
            covering = tier.put_block(base, node, dump)
            hold.extend(covering)
            moved += len(dump)
            yield len(dump)
        twin = covering
        hold.extend(twin)
        for snapshot in _ending_in(node):
            if snapshot.data not in base.snapshots and snapshot in cache.pool.snapshots:
                dump = executor.dump_snapshot(snapshot.ref)
                tier.put_snapshot(twin, snapshot, dump)
                moved += len(dump)
                yield len(dump)
    tier.touch(twin)
    return moved


def _free(cache: PrefixCache, tier: Tier, key: TokenKey, namespace: bytes) -> int:
    """Remove the path from its end up to what is needed otherwise; returns bytes of the cache."""
    info, pool = cache.executor.info, cache.pool
    blocks, snapshots = pool.n_blocks, len(pool.snapshots)
    node = _end(cache, key, namespace)
    if node is None:
        return 0
    copies: list[Node | None] = [tier.root(namespace)]  # of the blocks above each one of the path
    for above in node.path():
        copies.append(None if copies[-1] is None else copies[-1].covering(above.data))
    while (parent := node.parent) is not None and not node.nodes and not node.pins:
        copies.pop()
        base = copies[-1]
        if pool.retained(node) or any(base is None or snapshot.data not in base.snapshots for snapshot in node.carried):
            break
        pool.remove_block(node, "offloaded")
        node = parent
    return (blocks - pool.n_blocks) * info.block_bytes + (snapshots - len(pool.snapshots)) * info.snapshot_bytes


# -- and back


class _Bringing:
    """One path of the tier on its way into the cache, as far as there is room."""

    def __init__(self, cache: PrefixCache, tier: Tier, found: Snapshot, namespace: bytes, step_bytes: int) -> None:
        self._cache = cache
        self._tier = tier
        self._found = found
        self._namespace = namespace
        self._path = found.carrier.path()
        self._key = TokenKey.from_bytes(b"".join(node.data for node in self._path))
        self._group = max(step_bytes // max(cache.executor.info.block_bytes, 1), 1) * cache.pool.block_tokens
        self._loaded = 0

    def steps(self) -> Iterator[int]:
        """Bytes of each step: groups of blocks, the deepest snapshot, then earlier ones."""
        cache, pool = self._cache, self._cache.pool
        with cache.holding(self._namespace) as lease, cache.holding(self._namespace) as point:
            there = self._matched() // pool.block_tokens
            if not self._grow(lease, there * pool.block_tokens) or not cache.make_room(len(self._path) - there):
                return
            position = there * pool.block_tokens
            while position < len(self._key):
                position = min(position + self._group, len(self._key))
                if not self._grow(lease, position):
                    return
                yield self._take()
            if not self._grow(point, self._found.offset, self._found):
                return
            yield self._take()
            for snapshot in self._earlier():
                if len(pool.snapshots) < pool.max_snapshots:
                    self._grow(point, snapshot.offset, snapshot)
                    yield self._take()
            self._tier.touch(self._found.carrier)

    def _matched(self) -> int:
        root = self._cache.pool.roots.get(self._namespace)
        return 0 if root is None else search(root, self._key, self._cache.pool.block_tokens).matched

    def _earlier(self) -> list[Snapshot]:
        """Snapshots before the deepest one, the deepest first."""
        on_path = [snapshot for node in self._path for snapshot in _ending_in(node)]
        before = [snapshot for snapshot in on_path if snapshot.offset < self._found.offset]
        return sorted(before, key=lambda snapshot: -snapshot.offset)

    def _grow(self, lease: Lease, end: int, snapshot: Snapshot | None = None) -> bool:
        """Blocks up to `end`, and the snapshot there."""
        size = self._cache.pool.block_tokens
        return self._cache.grow(
            lease,
            TokenKey.from_bytes(self._key[:end]),
            lambda start, _: self._block(self._path[start // size]),
            None if snapshot is None else Wanted(snapshot.kind, lambda: self._snapshot(snapshot), snapshot.retention),
            lambda start, _: self._path[start // size].retention,
        )

    def _block(self, node: Node) -> BlockRef:
        return self._cache.executor.load_block(self._read(node))

    def _snapshot(self, snapshot: Snapshot) -> SnapshotRef:
        return self._cache.executor.load_snapshot(self._read(snapshot))

    def _read(self, item: Node | Snapshot) -> bytes:
        data = self._tier.read(item)
        self._loaded += len(data)
        return data

    def _take(self) -> int:
        """Bytes loaded since the last step."""
        loaded, self._loaded = self._loaded, 0
        return loaded
