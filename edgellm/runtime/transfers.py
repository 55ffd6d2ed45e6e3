"""Offloads and recalls that wait for the engine: one after another, in pieces between its turns.

What must stay true: running requests wait for no more than `PIECE_BYTES` a turn (or for one dump, which is not split);
a transfer that fails ends with its error and touches no request; every future is completed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgellm.errors import EngineDeadError, ExecutionError
from edgellm.runtime.metered import ExecutorFault
from edgellm.runtime.stats import Totals

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 25  # moved in a turn while requests run
IDLE_PIECE_BYTES = 1 << 28  # while none does: a new one waits for no more

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[_Result]):
    steps: Generator[int, None, _Result]
    future: Future[_Result]

    def work(self, limit: int) -> int:
        """Go on for about `limit` bytes; returns what is left of them once the transfer has ended, else 0."""
        if not (self.future.running() or self.future.set_running_or_notify_cancel()):
            return limit
        try:
            while limit > 0:
                limit -= next(self.steps)
        except StopIteration as end:
            self.future.set_result(end.value)
            return max(limit, 1)
        return 0

    def fail(self, error: Exception) -> None:
        self.steps.close()
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Transfers:
    """See the module's docstring. `add` from any thread; the rest on the engine's."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._queue: deque[_Waiting[object]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._queue)

    def add(self, steps: Generator[int, None, _Result]) -> Future[_Result]:
        """Queue a transfer, whose generator yields the bytes of each step."""
        future: Future[_Result] = Future()
        self._queue.append(_Waiting(steps, future))  # type: ignore[arg-type]  # the results' types differ
        return future

    def work(self, limit: int) -> bool:
        """Move about `limit` bytes; returns whether a transfer ended."""
        ended = False
        while self._queue and limit > 0:
            first = self._queue[0]
            try:
                limit = first.work(limit)
            except ExecutorFault as fault:
                logger.error("a transfer failed", exc_info=fault)
                self._totals.faults += 1
                first.fail(ExecutionError(f"the executor failed: {fault}"))
            except Exception as error:
                logger.error("a transfer failed", exc_info=error)
                first.fail(error)
            else:
                if limit == 0:
                    return ended
            self._queue.popleft()
            ended = True
        return ended

    def close(self, reason: str) -> None:
        """End what waits or runs."""
        while self._queue:
            self._queue.popleft().fail(EngineDeadError(reason))
