"""What the executor of a device runs on: memory, kernels, engines, and programs made of them.

A *program* is a list of operations that always work on the same buffers; a device may record it once and replay it (a
CUDA graph). Everything that differs from step to step is therefore in buffers that are uploaded before. What must stay
true: operations run in the order in which they were submitted; `download` waits for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel

Array = NDArray[Any]


class Buffer(Protocol):
    """Device memory with a shape and a dtype, in C order."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, key: int | slice | tuple[int, ...]) -> Self:
        """Part of the same memory: leading indices, or a step-less slice of the first axis."""
        ...

    def reshape(self, *shape: int) -> Self:
        """The same memory with another shape."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel; `tensors` by parameter name."""

    kernel: Kernel
    sizes: Sizes
    tensors: Mapping[str, Buffer]


@dataclass(frozen=True, slots=True)
class Run:
    """One engine of the bundle, by its file's stem; `tensors` by the names of its inputs and outputs."""

    engine: str
    tensors: Mapping[str, Buffer]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy between buffers of equal size."""

    source: Buffer
    target: Buffer


Operation = Launch | Run | Copy


class Program(Protocol):
    """Recorded operations."""

    def __call__(self) -> None:
        """Submit them."""
        ...


class Device(Protocol):
    """One device; used from one thread."""

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Buffer:
        """New memory, zeroed. Freed with the device.

        Raises:
            ConfigError: there is not enough.
        """
        ...

    def clear(self, buffer: Buffer) -> None:
        """Zero it."""
        ...

    def upload(self, target: Buffer, values: Array) -> None:
        """Copy `values`, of the buffer's shape and dtype, into it; `values` may be changed afterwards."""
        ...

    def download(self, source: Buffer) -> Array:
        """A copy on the host, when everything submitted before is done."""
        ...

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Submit a copy between buffers of equal size."""
        ...

    def program(self, operations: Sequence[Operation]) -> Program:
        """Prepare `operations`: kernels are compiled, engines loaded, shapes checked.

        Raises:
            ConfigError: a kernel or an engine does not exist for these sizes.
        """
        ...

    @property
    def used(self) -> int:
        """Bytes of all buffers."""
        ...

    @property
    def weights(self) -> int:
        """Bytes of the engines that were loaded."""
        ...

    def close(self) -> None: ...
