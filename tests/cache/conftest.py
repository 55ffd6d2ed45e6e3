"""An executor whose slots, blocks and snapshots are literal token tuples, and a small engine that uses the cache.

Every restore is checked to give exactly the tokens asked for; every publish and snapshot to stay within a limit, even
for a moment; every reference to be freed once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from edgellm.cache import (
    EventBus,
    PrefixCache,
    RetentionPlan,
    SnapshotPoint,
    TokenRange,
    keep_after_generation,
    plan_snapshots,
)
from edgellm.cache.retention import DEFAULT_PRIORITY
from edgellm.engine.base import BlockRef, ExecutorInfo, SnapshotRef

Words = tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A block with everything before it, or a snapshot: all tokens from the start, under the salt of its slot."""

    tokens: Words
    start: int
    salt: str


class LiteralExecutor:
    def __init__(self, *, block: int = 4, blocks: int = 1000, snapshots: int = 1000, slots: int = 4) -> None:
        self.info = ExecutorInfo(
            slots=slots,
            max_tokens=1 << 20,
            max_chunk=1 << 20,
            max_batch=8,
            max_tree=0,
            draft_top_k=0,
            block_tokens=block,
            block_bytes=10,
            snapshot_bytes=100,
            vocab_size=1 << 20,
            fingerprint="literal",
        )
        self.limits = (blocks, snapshots)
        self.slots: list[Words] = [()] * slots
        self.salts = [""] * slots
        self.blocks: dict[int, Kept] = {}
        self.snapshots: dict[int, Kept] = {}
        self.published = 0
        self.fail_next = 0  # publishes and snapshots that raise
        self._next = 1

    def begin(self, slot: int, salt: str, length: int, blocks: Sequence[BlockRef], ref: SnapshotRef | None) -> None:
        """restore(), remembering whose tokens the slot holds."""
        tokens: Words = ()
        if length:
            assert ref is not None
            size = self.info.block_tokens
            for index, block in enumerate(blocks):
                kept = self.blocks[block]
                assert kept.start == index * size == len(tokens)
                assert kept.tokens[: kept.start] == tokens, "a block of another path"
                assert kept.salt == salt
                tokens = kept.tokens[:length]
            assert len(tokens) == length
            assert len(blocks) == -(-length // size)
            assert self.snapshots[ref].tokens == tokens, "a snapshot of another path"
            assert self.snapshots[ref].salt == salt
        self.slots[slot], self.salts[slot] = tokens, salt

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        size = self.info.block_tokens
        assert start % size == 0
        assert start < end <= min(start + size, len(self.slots[slot]))
        return BlockRef(self._keep(self.blocks, self.limits[0], Kept(self.slots[slot][:end], start, self.salts[slot])))

    def snapshot(self, slot: int) -> SnapshotRef:
        kept = Kept(self.slots[slot], 0, self.salts[slot])
        return SnapshotRef(self._keep(self.snapshots, self.limits[1], kept))

    def _keep(self, table: dict[int, Kept], limit: int, kept: Kept) -> int:
        if self.fail_next:
            self.fail_next -= 1
            raise MemoryError("no memory")
        assert len(table) < limit, "over budget"
        self.published += 1
        self._next += 1
        table[self._next] = kept
        return self._next

    def free_block(self, ref: BlockRef) -> None:
        del self.blocks[ref]

    def free_snapshot(self, ref: SnapshotRef) -> None:
        del self.snapshots[ref]

    def dump_block(self, ref: BlockRef) -> bytes:
        return self._dump(self.blocks[ref])

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        return self._dump(self.snapshots[ref])

    def load_block(self, data: bytes) -> BlockRef:
        return BlockRef(self._keep(self.blocks, self.limits[0], self._load(data)))

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        return SnapshotRef(self._keep(self.snapshots, self.limits[1], self._load(data)))

    @staticmethod
    def _dump(kept: Kept) -> bytes:
        return json.dumps([kept.tokens, kept.start, kept.salt[::-1]]).encode()  # not the salt as it is

    @staticmethod
    def _load(data: bytes) -> Kept:
        tokens, start, salt = json.loads(data)
        return Kept(tuple(tokens), start, salt[::-1])


def same_for_all(prompt: Words, priority: int | None = None, duration_s: float | None = None) -> RetentionPlan:
    """One priority for all tokens, the generated ones too."""
    if priority is None:
        return RetentionPlan(len(prompt))
    return RetentionPlan(len(prompt), (TokenRange(0, None, priority, duration_s),), priority, duration_s)


class Live:
    """A sequence on its way through prefill."""

    def __init__(self, engine: Engine, slot: int, prompt: Words, salt: str, retention: RetentionPlan) -> None:
        self.engine, self.slot, self.prompt, self.salt, self.retention = engine, slot, prompt, salt, retention
        self.lease = engine.cache.acquire(prompt, salt=salt, limit=len(prompt) - 1)
        self.restored, self.stored = False, 0
        self.prefilled = len(prompt) - self.lease.length
        self.points: list[SnapshotPoint] = []

    def restore(self, stable_lengths: Sequence[int] | None = None, *, every: int = 0, min_gap: int = 2) -> None:
        lease, executor = self.lease, self.engine.executor
        executor.begin(self.slot, self.salt, lease.length, lease.blocks, lease.snapshot)
        assert executor.slots[self.slot] == self.prompt[: lease.length]
        self.restored = True
        self.points = list(
            plan_snapshots(
                len(self.prompt),
                restored=lease.length,
                matched=lease.matched,
                stable_lengths=stable_lengths,
                every=every,
                min_gap=min_gap,
            )
        )

    def step(self) -> bool:
        """Prefill up to the next point and store it; False when there is none left."""
        if not self.points:
            return False
        point = self.points.pop(0)
        self.store(self.prompt, point.offset, point.kind)
        return True

    def store(self, tokens: Words, end: int, kind: str | None) -> bool:
        self.engine.executor.slots[self.slot] = tokens[:end]
        done = self.engine.cache.store(
            self.lease,
            tokens,
            end,
            slot=self.slot,
            snapshot=kind,  # type: ignore[arg-type]
            retention=self.retention,
        )
        if done:
            self.stored = end
        return done

    def end(self) -> None:
        self.engine.cache.release(self.lease)
        self.engine.free.append(self.slot)


class Engine:
    """Just enough of a runtime."""

    def __init__(self, executor: LiteralExecutor, cache: PrefixCache) -> None:
        self.executor, self.cache = executor, cache
        self.free = list(range(executor.info.slots))

    def start(
        self,
        prompt: Sequence[int],
        *,
        salt: str = "",
        priority: int | None = None,
        duration_s: float | None = None,
        ranges: tuple[TokenRange, ...] = (),
        decode_priority: int = DEFAULT_PRIORITY,
    ) -> Live:
        words = tuple(prompt)
        plan = same_for_all(words, priority, duration_s)
        if ranges or decode_priority != DEFAULT_PRIORITY:
            plan = RetentionPlan(len(words), ranges, decode_priority)
        return Live(self, self.free.pop(), words, salt, plan)

    def turn(
        self,
        prompt: Sequence[int],
        *,
        answer: Sequence[int] = (),
        stable: Sequence[int] | None = None,
        salt: str = "",
        every: int = 0,
        min_gap: int = 2,
        **options: Any,
    ) -> int:
        """A whole request. Returns the tokens it prefilled."""
        live = self.start(prompt, salt=salt, **options)
        live.restore(stable, every=every, min_gap=min_gap)
        while live.step():
            pass
        if answer and keep_after_generation(len(live.prompt), stable):
            whole = live.prompt + tuple(answer)
            live.store(whole, len(whole), "output")
        live.end()
        self.cache.check()
        return live.prefilled


class Clock:
    """Seconds, moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


MakeEngine = Callable[..., Engine]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_engine(clock: Clock) -> MakeEngine:
    """make_engine(block=…, blocks=…, snapshots=…, slots=…, events=…, share=…): budgets in blocks and snapshots."""

    def make(
        *,
        block: int = 4,
        blocks: int = 1000,
        snapshots: int = 1000,
        slots: int = 4,
        events: EventBus | None = None,
        share: float = 1.0,
    ) -> Engine:
        executor = LiteralExecutor(block=block, blocks=blocks, snapshots=snapshots, slots=slots)
        cache = PrefixCache(
            executor,  # type: ignore[arg-type]
            block_budget_bytes=blocks * 10 + 9,
            snapshot_budget_bytes=snapshots * 100 + 99,
            retained_share=share,
            clock=clock,
            events=events,
        )
        return Engine(executor, cache)

    return make
