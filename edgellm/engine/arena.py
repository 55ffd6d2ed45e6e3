"""Equal pieces of float32 memory, cut from large slabs.

Large slabs come in huge pages where the system has them, so a fresh piece costs one page fault per two megabytes
instead of hundreds. What must stay true: a piece is given out once until it is given back; a slab without pieces in use
goes back to the system unless it is the only one with room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
SLAB_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Memory `values` [floats], not initialised."""

    values: F32
    slab: int
    place: int


class Arena:
    """Pieces of `floats` values each."""

    def __init__(self, floats: int) -> None:
        self._floats = floats
        self._count = max(1, SLAB_BYTES // (4 * floats))
        self._slabs: dict[int, F32] = {}
        self._free: dict[int, list[int]] = {}  # places of each slab that has any, last one first out
        self._next = 0

    @property
    def reserved(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.nbytes for slab in self._slabs.values())

    def take(self) -> Piece:
        """A piece, from the oldest slab that has one."""
        if not self._free:
            self._slabs[self._next] = np.empty((self._count, self._floats), np.float32)
            self._free[self._next] = list(range(self._count - 1, -1, -1))
            self._next += 1
        slab = min(self._free)
        place = self._free[slab].pop()
        if not self._free[slab]:
            del self._free[slab]
        return Piece(self._slabs[slab][place], slab, place)

    def give(self, piece: Piece) -> None:
        """Take `piece` back."""
        places = self._free.setdefault(piece.slab, [])
        places.append(piece.place)
        if len(places) == self._count and len(self._free) > 1:
            del self._free[piece.slab], self._slabs[piece.slab]
