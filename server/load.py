"""How many requests are inside the server, and whether it still takes new ones.

What must stay true: a request that was let in is counted until its answer is over; draining is never taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.02


class Load:
    """Used on the server's event loop; `drain` may come from a signal handler.

    Args:
        limit: requests that may be inside at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0
        self.draining = False

    @property
    def full(self) -> bool:
        return self.in_flight >= self._limit

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around the answer to one request."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def drain(self) -> None:
        """From now on take no new request."""
        self.draining = True

    async def drained(self, timeout_s: float, *, unless: Callable[[], bool]) -> float:
        """Wait until nothing is inside; seconds that are then left of the timeout. Stops early when `unless()`."""
        end = time.monotonic() + timeout_s
        while self.in_flight and not unless() and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        return max(0.0, end - time.monotonic())
