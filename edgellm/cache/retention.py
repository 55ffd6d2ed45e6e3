"""How long cached tokens are kept: priorities by token range, in the terms of TensorRT-LLM's KvCacheRetentionConfig.

Priorities are 0-100, 35 by default, lowest first to go; with a duration a priority goes back to 35 when it ends. Ranges
hold for prompt tokens; generated tokens have a priority of their own. What must stay true: a span of tokens gets the
highest of the priorities that its tokens ask for; a request never lowers what another one asked for; of each budget no
more than a configured share is held above the default (`Tally`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from edgellm.errors import RequestError

DEFAULT_PRIORITY = 35
HIGHEST_PRIORITY = 100
HEAD_PRIORITY = 90  # of a system prompt and tools
DECODE_PRIORITY = 30  # of generated tokens: most of them are reasoning, which the next prompt drops
HEAD_DURATION_S = 3600.0  # since the last use: heads that nobody uses any more must not fill the share of retained ones


@dataclass(frozen=True, slots=True)
class Retention:
    """Priority 0-100 until `expires` (seconds of the cache's clock), then the default."""

    priority: int = DEFAULT_PRIORITY
    expires: float | None = None

    def at(self, now: float) -> int:
        return self.priority if self.expires is None or now < self.expires else DEFAULT_PRIORITY

    def raised_by(self, other: Retention, now: float) -> Retention:
        """The stronger of the two: the higher priority now, then the one that lasts longer."""
        if other is self:
            return self
        mine, theirs = self.at(now), other.at(now)
        if mine != theirs:
            return self if mine > theirs else other
        mine_ends, theirs_ends = (
            math.inf if value.expires is None or now >= value.expires else value.expires for value in (self, other)
        )
        return self if mine_ends >= theirs_ends else other


DEFAULT = Retention()


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Prompt tokens [start, end) keep `priority` for `duration_s` seconds. See `check_ranges`.

    Attributes:
        end: None: to the end of the prompt. It may lie behind it.
        duration_s: after this the priority is the default; None: for as long as the tokens are cached.
    """

    start: int
    end: int | None
    priority: int
    duration_s: float | None = None


class RangeFields(NamedTuple):
    """What the parts of a range are called where it came from."""

    start: str = "start"
    end: str = "end"
    priority: str = "priority"
    duration: str = "duration_s"


TENSORRT_LLM = RangeFields("token_start", "token_end", "priority", "duration_ms")


def check_ranges(ranges: Sequence[TokenRange], path: str, fields: RangeFields = TENSORRT_LLM) -> tuple[TokenRange, ...]:
    """The ranges by their starts. Neighbours may touch, and what lies between two keeps the default.

    Args:
        path: where the ranges stand in the request, e.g. ``"kv_retention.token_range_retention_configs"``.
        fields: their fields' names there.

    Raises:
        RequestError: a range is negative, empty or out of bounds, two overlap, or one that is not the last has no end;
            names e.g. ``kv_retention.token_range_retention_configs[1].token_start``.
    """
    for index, item in enumerate(ranges):
        where = f"{path}[{index}]"
        _check_integer(item.start, f"{where}.{fields.start}")
        if item.end is not None:
            _check_integer(item.end, f"{where}.{fields.end}")
            if item.end <= item.start:
                raise _wrong(f"{where}.{fields.end}", f"must be above {fields.start} {item.start}, got {item.end}")
        check_priority(item.priority, f"{where}.{fields.priority}")
        check_duration(item.duration_s, f"{where}.{fields.duration}")
    order = sorted(range(len(ranges)), key=lambda index: ranges[index].start)
    for first, second in pairwise(order):
        end, start = ranges[first].end, ranges[second].start
        if end is None:
            raise _wrong(f"{path}[{first}].{fields.end}", f"is required: {path}[{second}] starts at {start}")
        if start < end:
            raise _wrong(f"{path}[{second}].{fields.start}", f"{start} overlaps {path}[{first}], which ends at {end}")
    return tuple(ranges[index] for index in order)


def check_priority(priority: int | None, param: str) -> None:
    """None, or 0 to 100.

    Raises:
        RequestError: naming `param`.
    """
    if priority is None:
        return
    _check_integer(priority, param)
    if priority > HIGHEST_PRIORITY:
        raise _wrong(param, f"must be 0 to {HIGHEST_PRIORITY}, got {priority}")


def check_duration(duration_s: float | None, param: str) -> None:
    """None, or a finite number of seconds above 0.

    Raises:
        RequestError: naming `param`.
    """
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise _wrong(param, "must be a finite time above 0")


def default_ranges(head_length: int) -> tuple[TokenRange, ...]:
    """What a conversation keeps unless its request says otherwise: system prompt and tools before everything else.

    The rest of the prompt has the default; what is generated has `DECODE_PRIORITY`, by the request's own field.

    Args:
        head_length: leading tokens that are system prompt and tools (`Rendered.head_length`).
    """
    return (TokenRange(0, head_length, HEAD_PRIORITY, HEAD_DURATION_S),) if head_length > 0 else ()


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What one request asks for its tokens.

    Attributes:
        prompt_length: tokens from here on are generated.
        ranges: over the prompt, checked and in order; the default elsewhere.
        decode_priority, decode_duration_s: of generated tokens.
    """

    prompt_length: int = 0
    ranges: tuple[TokenRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration_s: float | None = None

    def over(self, start: int, end: int, now: float) -> Retention:
        """The highest that any of tokens [start, end) asks for."""
        best = None
        if end > self.prompt_length:
            best = _until(self.decode_priority, self.decode_duration_s, now)
        end = min(end, self.prompt_length)
        if start >= end:
            return best or DEFAULT
        at = start  # up to here tokens have been looked at
        for index in range(max(bisect_right(self.ranges, start, key=_start) - 1, 0), len(self.ranges)):
            item = self.ranges[index]
            stop = self.prompt_length if item.end is None else item.end
            if stop <= start:
                continue
            if item.start >= end:
                break
            wanted = _until(item.priority, item.duration_s, now)
            if item.start > at:
                wanted = wanted.raised_by(DEFAULT, now)
            best = wanted if best is None else best.raised_by(wanted, now)
            at = stop
        if at < end:
            best = DEFAULT if best is None else best.raised_by(DEFAULT, now)
        return best or DEFAULT

    def state_at(self, offset: int, now: float) -> Retention:
        """Of a recurrent state behind `offset` tokens: what its last token asks for.

        One behind generated tokens is kept only where the next prompt goes on from it, so it is worth no less than the
        end of this prompt: were it the first to go, conversations would lose their newest points to their old ones.
        """
        last = self.over(offset - 1, offset, now)
        if offset <= self.prompt_length or self.prompt_length == 0:
            return last
        return last.raised_by(self.over(self.prompt_length - 1, self.prompt_length, now), now)

    @property
    def kept_lengths(self) -> tuple[int, ...]:
        """Where tokens that are kept above the default end: without a state there they could not be restored alone."""
        ends = [item.end for item in self.ranges if item.priority > DEFAULT_PRIORITY and item.end is not None]
        return tuple(end for end in ends if end < self.prompt_length)


class Tally:
    """How many items are held with which retention, and how many more may be raised above the default.

    Written by the cache's thread; `by_priority` may be read from any.

    Args:
        limit: most items above the default.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clipped = 0  # raises that were not granted
        self.counts: dict[Retention, int] = {}

    def allowed(self, wanted: Retention, held: Retention | None, now: float) -> Retention:
        """What an item that has `held` (None: a new one) gets when it is to have `wanted`.

        A raise above the default that would exceed the limit becomes the default. What is raised already stays so and
        may go higher.
        """
        if wanted.at(now) <= DEFAULT_PRIORITY or (held is not None and held.at(now) > DEFAULT_PRIORITY):
            return wanted
        if self.raised(now) < self.limit:
            return wanted
        self.clipped += 1
        return DEFAULT

    def raised(self, now: float) -> int:
        """Items above the default."""
        return sum(count for retention, count in self.counts.items() if retention.at(now) > DEFAULT_PRIORITY)

    def add(self, retention: Retention) -> None:
        self.counts[retention] = self.counts.get(retention, 0) + 1

    def remove(self, retention: Retention) -> None:
        left = self.counts[retention] - 1
        if left:
            self.counts[retention] = left
        else:
            del self.counts[retention]

    def by_priority(self, now: float) -> dict[int, int]:
        """Items by their priority now, the lowest first."""
        result: dict[int, int] = {}
        for retention, count in self.counts.copy().items():
            priority = retention.at(now)
            result[priority] = result.get(priority, 0) + count
        return dict(sorted(result.items()))


def _start(item: TokenRange) -> int:
    return item.start


def _until(priority: int, duration_s: float | None, now: float) -> Retention:
    if priority == DEFAULT_PRIORITY:
        return DEFAULT
    return Retention(priority, None if duration_s is None else now + duration_s)


def _check_integer(value: int, param: str) -> None:
    if type(value) is not int or value < 0:
        raise _wrong(param, f"must be an integer of at least 0, got {value!r:.60}")


def _wrong(param: str, what: str) -> RequestError:
    return RequestError(f"{param} {what}", param=param, code="invalid_value")
