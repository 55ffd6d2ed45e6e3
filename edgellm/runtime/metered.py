"""The executor as the engine uses it: every call is timed, and whatever one raises is marked as the executor's fault.

The engine has to tell a fault of the model (the slots involved hold nothing, it may be broken for everyone) from one of
a single request (its constraint, its text), also when it comes through the cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from edgellm.engine.base import (
    BlockRef,
    Chunk,
    DraftNodes,
    DraftResult,
    Executor,
    ExecutorInfo,
    Logits,
    SnapshotRef,
    TokenTree,
)


class ExecutorFault(Exception):
    """An executor call raised; `__cause__` is what."""


class _Meter:
    """Times the blocks under it and marks their exceptions."""

    __slots__ = ("_start", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.seconds += time.perf_counter() - self._start
        if isinstance(error, Exception):
            raise ExecutorFault(f"{type(error).__name__}: {error}") from error


class MeteredExecutor:
    """See the module's docstring; the contract is `edgellm.engine.base.Executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._meter = _Meter()
        self.info: ExecutorInfo = executor.info

    @property
    def seconds(self) -> float:
        """Time spent inside executor calls so far."""
        return self._meter.seconds

    def length(self, slot: int) -> int:
        return self._executor.length(slot)

    def reset(self, slot: int) -> None:
        with self._meter:
            self._executor.reset(slot)

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        with self._meter:
            self._executor.restore(slot, length, blocks, snapshot)

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        with self._meter:
            return self._executor.publish(slot, start, end)

    def snapshot(self, slot: int) -> SnapshotRef:
        with self._meter:
            return self._executor.snapshot(slot)

    def free_block(self, ref: BlockRef) -> None:
        with self._meter:
            self._executor.free_block(ref)

    def free_snapshot(self, ref: SnapshotRef) -> None:
        with self._meter:
            self._executor.free_snapshot(ref)

    def dump_block(self, ref: BlockRef) -> bytes:
        with self._meter:
            return self._executor.dump_block(ref)

    def load_block(self, data: bytes) -> BlockRef:
        with self._meter:
            return self._executor.load_block(data)

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        with self._meter:
            return self._executor.dump_snapshot(ref)

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        with self._meter:
            return self._executor.load_snapshot(data)

    def advance(self, batch: Sequence[Chunk]) -> Logits:
        with self._meter:
            return self._executor.advance(batch)

    def verify(self, tree: TokenTree) -> Logits:
        with self._meter:
            return self._executor.verify(tree)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        with self._meter:
            self._executor.commit(slot, path)

    def draft(self, batch: Sequence[DraftNodes]) -> Sequence[DraftResult]:
        with self._meter:
            return self._executor.draft(batch)

    def memory(self) -> dict[str, int]:
        return self._executor.memory()

    def close(self) -> None:
        self._executor.close()
