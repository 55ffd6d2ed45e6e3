"""A device without memory: buffers are addresses, programs are kept and not run.

It tells what an executor would need: bytes, and which kernels for which sizes. What must stay true: addresses of
different buffers never overlap, so that whoever reads the programs knows which operation reads what another wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

from edgellm.engine.device.base import Array, Buffer, Launch, Operation, Program
from edgellm.engine.device.cuda import CudaBuffer
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel


class SymbolicDevice:
    """The contract is `edgellm.engine.device.base.Device`; `download` gives zeros."""

    weights = 0

    def __init__(self) -> None:
        self.programs: list[tuple[Operation, ...]] = []
        self._end = 256

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Buffer:
        made = CudaBuffer(self._end, tuple(shape), np.dtype(dtype))
        self._end += made.nbytes + 256
        return made

    def clear(self, buffer: Buffer) -> None:
        pass

    def upload(self, target: Buffer, values: Array) -> None:
        if (values.shape, values.dtype) != (target.shape, target.dtype):
            raise ValueError(f"upload of {values.dtype} {values.shape} into {target.dtype} {target.shape}")

    def download(self, source: Buffer) -> Array:
        return np.zeros(source.shape, source.dtype)

    def copy(self, source: Buffer, target: Buffer) -> None:
        if source.nbytes != target.nbytes:
            raise ValueError(f"copy of {source.nbytes} bytes into {target.nbytes}")

    def program(self, operations: Sequence[Operation]) -> Program:
        self.programs.append(tuple(operations))
        return lambda: None

    @property
    def used(self) -> int:
        """Bytes of all buffers, and a little for each of them."""
        return self._end

    def close(self) -> None:
        pass

    def launches(self) -> Iterator[tuple[Kernel, Sizes]]:
        """Every kernel with every sizes that the programs launch it for, once."""
        seen: set[tuple[str, Sizes]] = set()
        for operation in (operation for program in self.programs for operation in program):
            if isinstance(operation, Launch) and (operation.kernel.name, operation.sizes) not in seen:
                seen.add((operation.kernel.name, operation.sizes))
                yield operation.kernel, operation.sizes


def buffer_bytes(buffer: Buffer) -> tuple[int, int]:
    """First address and end of a buffer of this device."""
    assert isinstance(buffer, CudaBuffer)
    return buffer.address, buffer.address + math.prod(buffer.shape) * buffer.dtype.itemsize
