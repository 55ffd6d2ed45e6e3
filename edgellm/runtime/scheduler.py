"""Who runs next: the queue, the slots, whose turn it is to prefill, who ends early. Policy only: no threads, no model.

The queue is bounded and goes by priority, then first come first served. A request that fits the context needs nothing
but a slot, so it waits in the queue until one is free: memory is never promised twice. Prefill goes one chunk of one
sequence at a time between two decode rounds, so running streams keep flowing. What must stay true: a slot belongs to at
most one sequence; every sequence that was queued leaves through `ended` or `leave` exactly once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass, field

from edgellm.cache.keys import common_tokens
from edgellm.errors import QueueFullError
from edgellm.runtime.sequence import Phase, Sequence


@dataclass(slots=True)
class _Slot:
    """A slot and what it last held: going back to it may save copying."""

    number: int
    salt: str = ""
    held: bytes = b""  # packed tokens
    left: int = field(default=0)  # when it became free, counted in departures


class Scheduler:
    """See the module's docstring.

    Args:
        slots: sequences that run at the same time.
        max_queue: sequences that may wait for a slot.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self._max_queue = max_queue
        self._queue: list[Sequence] = []  # by rank
        self._running: list[Sequence] = []  # by admission
        self._free = [_Slot(number) for number in range(slots)]
        self._departures = 0
        self._next_deadline = float("inf")  # of queued and running sequences; may be too early, never too late

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def idle(self) -> bool:
        return not self._queue and not self._running

    def enqueue(self, sequence: Sequence) -> None:
        """Raises QueueFullError: `max_queue` sequences wait already (and no slot is free)."""
        if len(self._queue) >= self._max_queue + len(self._free):
            raise QueueFullError(f"{len(self._queue)} requests are waiting; the limit is {self._max_queue}")
        insort(self._queue, sequence, key=lambda other: other.rank)
        if sequence.deadline is not None:
            self._next_deadline = min(self._next_deadline, sequence.deadline)

    def ended(self, now: float, cancelled: Collection[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """(cancelled, past their deadline): those among queued and running sequences that are to end now.

        Queued ones are out of the queue after this; running ones keep their slot until `leave`.
        """
        if not cancelled and now < self._next_deadline:
            return [], []
        late: list[Sequence] = []
        everyone = [*self._running, *self._queue]
        stopped = [sequence for sequence in everyone if sequence in cancelled]
        if now >= self._next_deadline:
            late = [s for s in everyone if s.deadline is not None and now >= s.deadline and s not in cancelled]
            left = [s.deadline for s in everyone if s.deadline is not None and s not in late]
            self._next_deadline = min(left, default=float("inf"))
        if stopped or late:
            self._queue = [s for s in self._queue if s not in cancelled and s not in late]
        return stopped, late

    def forget_queue(self) -> None:
        """Nobody will be admitted any more."""
        self._queue.clear()

    def admit(self) -> list[Sequence]:
        """Give free slots to the queue's first sequences; they are in `PREFILL` now."""
        admitted = []
        while self._free and self._queue:
            sequence = self._queue.pop(0)
            slot = self._best_slot(sequence)
            self._free.remove(slot)
            sequence.slot, sequence.phase = slot.number, Phase.PREFILL
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    def to_prefill(self) -> Sequence | None:
        """Whose chunk is computed next."""
        waiting = [sequence for sequence in self._running if sequence.phase is Phase.PREFILL]
        return min(waiting, key=lambda sequence: sequence.rank) if waiting else None

    def to_decode(self) -> list[Sequence]:
        return [sequence for sequence in self._running if sequence.phase is Phase.DECODE]

    def leave(self, sequence: Sequence) -> None:
        """A running sequence is over; its slot is free and still holds its committed tokens."""
        self._running.remove(sequence)
        self._departures += 1
        self._free.append(
            _Slot(sequence.slot, sequence.request.cache.salt, sequence.held().data, left=self._departures)
        )
        sequence.phase = Phase.DONE

    def everyone(self) -> list[Sequence]:
        """Queued and running sequences."""
        return [*self._running, *self._queue]

    def _best_slot(self, sequence: Sequence) -> _Slot:
        """The slot that last held the longest beginning of this prompt, else the one that was left the longest ago."""
        data, salt = sequence.key.data, sequence.request.cache.salt

        def value(slot: _Slot) -> tuple[int, int, int]:
            return (common_tokens(slot.held, data) if slot.salt == salt else 0, -slot.left, -slot.number)

        return max(self._free, key=value) if len(self._free) > 1 else self._free[0]
