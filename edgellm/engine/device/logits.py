"""Logits that stay on the device: the best token of every row has crossed, whole rows cross when they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.device.base import Buffer, Device
from edgellm.engine.guard import Clock


class DeviceLogits:
    """See `edgellm.engine.base.Logits`; `best` token and buffer f32 [vocab] of every row."""

    def __init__(self, device: Device, best: Sequence[int], rows: Sequence[Buffer], clock: Clock) -> None:
        self._device, self._best, self._rows = device, np.array(best, np.int64), rows
        self._clock, self._made = clock, clock.now

    @property
    def rows(self) -> int:
        return len(self._rows)

    def greedy(self) -> NDArray[np.int64]:
        """Arg-max of every row, [rows]; the lowest id wins a tie."""
        self._check()
        return self._best

    def row(self, index: int) -> NDArray[np.float32]:
        """Logits [vocab] of row `index`, read-only."""
        self._check()
        found: NDArray[np.float32] = self._device.download(self._rows[index])
        found.flags.writeable = False
        return found

    def _check(self) -> None:
        if self._made != self._clock.now:
            raise RuntimeError("these logits are no longer valid: the executor was called again")
