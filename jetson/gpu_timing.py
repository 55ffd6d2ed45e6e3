"""Times on a GPU: by its own events, over replays of captured graphs, each round beside a device-to-device copy.

A kernel that moves bytes is judged by the bandwidth that a copy reaches in the same minute on the same card: clocks
differ between cards and between minutes. What must stay true: what is timed was run before, is submitted so often that
the start of the first replay does not count, and moves more bytes than the L2 cache holds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from edgellm.engine.device.base import Copy, Program
from edgellm.engine.device.cuda import CudaDevice
from edgellm.jetson.gpu_device import Arena

_MOST_REPLAYS: Final = 2000
BEYOND_L2: Final = 4  # times its size, that a replay goes through before it comes back to the same bytes


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, and the tenth and ninetieth percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])


@dataclass(frozen=True, slots=True)
class CopyRate:
    """The fastest device-to-device copy. Rates count bytes read and bytes written."""

    bytes: int  # copied: half of what moves
    gb_s: Spread
    program: Program

    def rate(self, ms: float) -> float:
        """GB/s (10^9 bytes) of one copy that took `ms`."""
        return 2 * self.bytes / ms / 1e6


def replays(device: CudaDevice, program: Program, minimum_ms: float) -> int:
    """How often to submit `program` for a timing of `minimum_ms`; runs it, so that it is captured afterwards."""
    program()
    once = device.timed(program)
    return min(_MOST_REPLAYS, max(1, math.ceil(minimum_ms / max(once, 1e-6))))


def time_replays(device: CudaDevice, program: Program, count: int) -> float:
    """Milliseconds of one of `count` replays, one behind the other."""

    def submit() -> None:
        for _ in range(count):
            program()

    return device.timed(submit) / count


def copy_rates(
    device: CudaDevice, arena: Arena, sizes: Sequence[int], rounds: int, minimum_ms: float
) -> list[CopyRate]:
    """Copies of so many bytes, the fastest first. The arena keeps its buffers."""
    source, target = (arena.take((max(sizes),), "uint8") for _ in range(2))
    device.clear(source)
    found = []
    for size in sizes:
        program = device.program([Copy(source[:size], target[:size])])
        count = replays(device, program, minimum_ms)
        times = [time_replays(device, program, count) for _ in range(rounds)]
        found.append(CopyRate(size, Spread.of([2 * size / ms / 1e6 for ms in times]), program))
    return sorted(found, key=lambda rate: -rate.gb_s.median)


@dataclass(frozen=True, slots=True)
class Timing:
    """A program against a copy, in turns.

    Attributes:
        ms: of one replay.
        copy_gb_s: of the copies between.
        ratio: of the program's rate to that of the copies just before and after it, by round.
    """

    ms: Spread
    copy_gb_s: Spread
    ratio: Spread


def interleaved(
    device: CudaDevice, program: Program, moved: int, copy: CopyRate, rounds: int, minimum_ms: float
) -> Timing:
    """Time `program`, of which one replay moves `moved` bytes, and `copy` in turns."""
    counts = [replays(device, one, minimum_ms) for one in (program, copy.program)]
    copies = [copy.rate(time_replays(device, copy.program, counts[1]))]
    times: list[float] = []
    for _ in range(rounds):
        times.append(time_replays(device, program, counts[0]))
        copies.append(copy.rate(time_replays(device, copy.program, counts[1])))
    beside = [(before + after) / 2 for before, after in pairwise(copies)]
    ratios = [moved / ms / 1e6 / rate for ms, rate in zip(times, beside, strict=True)]
    return Timing(Spread.of(times), Spread.of(copies), Spread.of(ratios))


Clock = Callable[[], float]


class Deadline:
    """The time that a run has, from `now` (seconds)."""

    def __init__(self, seconds: float, now: Clock) -> None:
        self._now, self._end = now, now() + seconds

    def left(self) -> float:
        """Seconds; negative when it is over."""
        return self._end - self._now()
