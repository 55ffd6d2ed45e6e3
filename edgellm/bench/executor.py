"""Timings of one executor: decode, prefill, verify against advance, restore. Wall-clock seconds, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgellm.engine.base import BlockRef, Chunk, Executor, TokenTree

# 16 nodes, depth 6: the shape of a typical draft tree (top-2 with a dominant branch).
TREE_PARENTS = (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10, 10, 13)

_STEPS = 5  # decode steps between two measurements of bandwidth

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DepthTiming:
    """Timings with `depth` committed tokens in the slot."""

    depth: int
    decode_s: float  # one token
    bandwidth_gb_s: float  # memory reads, measured between the decode steps
    decode_gb_per_step: float  # what could have been read in the time of a step: median of step time x bandwidth then
    prefill_s: float | None  # one chunk of `prefill_tokens`
    prefill_tokens: int
    chain_s: float | None  # advance of 16 tokens
    tree_s: float | None  # verify of 16 nodes


def time_depth(
    executor: Executor, depth: int, *, rounds: int, bandwidth: Callable[[], float], report: Report
) -> DepthTiming:
    """Measure at a depth of about `depth` tokens in slot 0 (the slot is reset first).

    Args:
        rounds: groups of decode steps; each is timed between two calls of `bandwidth`, so that a machine whose speed
            changes by the second (its memory is shared) is compared with itself.
        bandwidth: one measurement of memory reads in GB/s.
    """
    info = executor.info
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, info.vocab_size, info.max_tokens)
    executor.reset(0)
    report(f"filling {depth} tokens")
    _fill(executor, tokens[:depth])
    report(f"decode at {depth}")
    decode: list[float] = []
    rates: list[float] = []
    for _ in range(rounds):
        before = bandwidth()
        steps = [timed(lambda: executor.advance([Chunk(0, tokens[:1], True)])) for _ in range(1 + _STEPS)]
        decode.append(statistics.median(steps[1:]))  # the first one finds the caches full of something else
        rates.append((before + bandwidth()) / 2)
    chain: list[float] = []
    tree: list[float] = []
    if info.max_tree >= 16:
        report(f"16-node tree against 16-token chain at {depth}")
        nodes = TokenTree(0, [int(t) for t in tokens[:16]], TREE_PARENTS)
        for _ in range(max(4, rounds // 2)):  # interleaved: both see the same noise
            chain.append(timed(lambda: executor.advance([Chunk(0, tokens[:16], True)])))
            tree.append(timed(lambda: executor.verify(nodes)))
    size = min(512, info.max_chunk, info.max_tokens - executor.length(0) - 16)
    prefill: list[float] = []
    if size > 0:
        report(f"prefill of {size} at {depth}")
        for _ in range(3):
            if executor.length(0) + size > info.max_tokens:
                break
            prefill.append(timed(lambda: executor.advance([Chunk(0, tokens[:size], True)])))
    return DepthTiming(
        depth=depth,
        decode_s=statistics.median(decode),
        bandwidth_gb_s=statistics.median(rates),
        decode_gb_per_step=statistics.median(step * rate for step, rate in zip(decode, rates, strict=True)),
        prefill_s=min(prefill) if prefill else None,
        prefill_tokens=size,
        chain_s=statistics.median(chain[1:]) if chain else None,
        tree_s=statistics.median(tree[1:]) if tree else None,
    )


def time_restore(executor: Executor, length: int, *, rounds: int = 5) -> float:
    """Median seconds to restore a prefix of `length` tokens into a slot that holds none of its blocks.

    The prefix is published twice and the two copies are restored in turn, so that an executor which skips rows that
    a slot already holds has to copy every time.
    """
    info = executor.info
    executor.reset(0)
    _fill(executor, np.random.default_rng(1).integers(0, info.vocab_size, length))
    copies = [_publish_all(executor, length) for _ in range(2)]
    snapshot = executor.snapshot(0)
    times = [
        timed(lambda blocks=copies[turn % 2]: executor.restore(1, length, blocks, snapshot))  # type: ignore[misc]
        for turn in range(rounds + 2)
    ]
    for ref in (*copies[0], *copies[1]):
        executor.free_block(ref)
    executor.free_snapshot(snapshot)
    return statistics.median(times[2:])


def _publish_all(executor: Executor, length: int) -> list[BlockRef]:
    step = executor.info.block_tokens
    return [executor.publish(0, start, min(start + step, length)) for start in range(0, length, step)]


def _fill(executor: Executor, tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    step = executor.info.max_chunk
    for start in range(0, len(tokens), step):
        executor.advance([Chunk(0, tokens[start : start + step], False)])


def timed(call: Callable[[], object]) -> float:
    """Seconds on the wall clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
