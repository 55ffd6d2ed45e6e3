"""What an executor has published, by reference.

What must stay true: a reference is never reused, so one that was freed can never name something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_Ref = TypeVar("_Ref", bound=int)
_Kept = TypeVar("_Kept")


class References(Generic[_Ref, _Kept]):
    """Values that are alive until they are dropped. An unknown reference raises ValueError.

    Args:
        make: a reference from its number.
        numbers: gives none twice; tables of one executor share it.
    """

    def __init__(self, make: Callable[[int], _Ref], numbers: Iterator[int]) -> None:
        self._make, self._numbers = make, numbers
        self._alive: dict[_Ref, _Kept] = {}

    def keep(self, value: _Kept) -> _Ref:
        ref = self._make(next(self._numbers))
        self._alive[ref] = value
        return ref

    def get(self, ref: _Ref) -> _Kept:
        if ref not in self._alive:
            raise ValueError(f"reference {ref} was freed or never existed")
        return self._alive[ref]

    def drop(self, ref: _Ref) -> _Kept:
        """What it named; from now on it names nothing."""
        value = self.get(ref)
        del self._alive[ref]
        return value

    def clear(self) -> Iterable[_Kept]:
        """Drop all."""
        return [self.drop(ref) for ref in list(self._alive)]

    def values(self) -> Iterable[_Kept]:
        return self._alive.values()

    def __len__(self) -> int:
        return len(self._alive)
