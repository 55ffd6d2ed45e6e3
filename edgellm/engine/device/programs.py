"""Recorded programs by key, and the small operations that several steps share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edgellm.engine.device.base import Array, Buffer, Device, Launch, Operation, Program
from edgellm.engine.device.rows import Model
from edgellm.kernels.attention import KV_COMMIT
from edgellm.kernels.spec import CONTEXT, CONTROL, COUNT, FIRST, POOL, TAIL_START


class Programs:
    """Programs of a device, recorded when they are first used."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[Hashable, Program] = {}

    def run(self, key: Hashable, operations: Callable[[], Sequence[Operation]]) -> None:
        """Submit the program `key`; `operations` makes it the first time."""
        program = self._known.get(key)
        if program is None:
            program = self._known[key] = self._device.program(operations())
        program()


def write_control(model: Model, control: Buffer, context: int, count: int, *, tail: int = 0, first: int = 0) -> None:
    """Upload a control block, see `edgellm.kernels.spec`."""
    values = np.zeros(CONTROL, np.int32)
    values[[CONTEXT, COUNT, TAIL_START, FIRST, POOL]] = context, count, tail, first, model.layout.pages
    model.device.upload(control, values)


def chain_positions(start: int, rows: int, limit: int) -> NDArray[np.int32]:
    """Positions of consecutive tokens from `start` on, within the `limit` rows of the RoPE tables."""
    return np.clip(start + np.arange(rows), 0, limit - 1).astype(np.int32)


def padded(values: Sequence[int], size: int, dtype: DTypeLike) -> Array:
    """`values` and zeros up to `size`."""
    made = np.zeros(size, dtype)
    made[: len(values)] = values
    return made


def commit_rows(
    model: Model, tails: tuple[Buffer, Buffer], page_table: Buffer, control: Buffer, accepted: Buffer, layers: slice
) -> Launch:
    """Copy the accepted rows of `tails` (keys, values; [layers, tail, …]) to the pages of the pool's `layers`."""
    count, tail = tails[0].shape[:2]
    sizes = replace(model.sizes(1, tail), layers=count)
    tensors = {
        "tail_k": tails[0],
        "tail_v": tails[1],
        "page_table": page_table,
        "control": control,
        "accepted": accepted,
        "k_pages": model.pool.k[layers],
        "v_pages": model.pool.v[layers],
    }
    return Launch(KV_COMMIT, sizes, tensors)
