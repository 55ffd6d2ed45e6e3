"""Noticing that a client takes no data, at the cost of one timer per stream: a timeout per write costs as much as the
rest of the write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self


class WriteWatch:
    """A context around each write; writes may overlap. Needs a running event loop.

    Args:
        limit_s: what one write may take.
        stalled: called once, between `limit_s` and twice as long after the write began.
    """

    def __init__(self, limit_s: float, stalled: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(limit_s, self._look)

    def __enter__(self) -> Self:
        if self._since is None:
            self._since = self._loop.time()
        return self

    def __exit__(self, *_: object) -> None:
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if self._since is not None and now >= self._since + self._limit_s:
            self._stalled()
        else:
            due = now if self._since is None else self._since
            self._timer = self._loop.call_at(due + self._limit_s, self._look)
