"""Logits as rows of an array that the next call overwrites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.guard import Clock


class ArrayLogits:
    """Rows `order` of `values` f32 [*, vocab]. Reading them after a later call raises RuntimeError."""

    def __init__(self, values: NDArray[np.float32], order: Sequence[int], clock: Clock) -> None:
        self._values = values
        self._order = order
        self._clock = clock
        self._made = clock.now

    @property
    def rows(self) -> int:
        return len(self._order)

    def greedy(self) -> NDArray[np.int64]:
        """Arg-max of every row, [rows]; the lowest id wins a tie."""
        self._check()
        return np.array([self._values[row].argmax() for row in self._order], np.int64)

    def row(self, index: int) -> NDArray[np.float32]:
        """Logits [vocab] of row `index`, read-only."""
        self._check()
        found: NDArray[np.float32] = self._values[self._order[index]]
        found.flags.writeable = False
        return found

    def _check(self) -> None:
        if self._made != self._clock.now:
            raise RuntimeError("these logits are no longer valid: the executor was called again")
