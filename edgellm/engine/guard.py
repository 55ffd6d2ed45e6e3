"""Which slots may be used: what every executor does around its runs.

What must stay true: a run that does not get to its end leaves its slots marked broken until they are reset or restored,
and logits of earlier calls end with every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from edgellm.errors import ExecutionError


class Clock:
    """Counts calls that may overwrite logits."""

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> None:
        self.now += 1


class _Breakable(Protocol):
    broken: bool


_State = TypeVar("_State", bound=_Breakable)


class SlotGuard(Generic[_State]):
    """The states of all slots.

    Args:
        states: one for each slot; the executor may replace them.
        where: what runs, for messages: "model" or "device".
    """

    def __init__(self, states: Sequence[_State], where: str) -> None:
        self.clock = Clock()
        self._states, self._where, self._closed = states, where, False

    def close(self) -> None:
        """No slot may be used any more."""
        self._closed = True
        self.clock.tick()

    def slot(self, slot: int) -> _State:
        """Raises ValueError: there is no such slot, or the executor is closed."""
        if self._closed:
            raise ValueError("the executor is closed")
        if not 0 <= slot < len(self._states):
            raise ValueError(f"slot {slot} of {len(self._states)}")
        return self._states[slot]

    def usable(self, slot: int) -> _State:
        """Raises ExecutionError too: the slot is broken."""
        state = self.slot(slot)
        if state.broken:
            raise ExecutionError(f"slot {slot} holds half a step after a failure: reset or restore it first")
        return state

    @contextmanager
    def running(self, slots: Iterable[int]) -> Iterator[None]:
        """A block that changes `slots`: they are broken when it does not get to its end."""
        self.clock.tick()
        try:
            yield
        except BaseException as error:
            for slot in slots:
                self._states[slot].broken = True
            if isinstance(error, Exception):
                raise ExecutionError(f"a {self._where} run in slots {list(slots)} failed: {error}") from error
            raise
