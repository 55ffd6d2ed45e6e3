"""The GPU that kernels are measured on: their binaries, and memory that is handed out again and again.

What must stay true: a binary from a folder was made from the very sources and sizes that are asked for; nothing that
was taken from `Arena` is used after `reset`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from edgellm.engine.device.base import Array, Buffer
from edgellm.engine.device.cuda import CudaBuffer, CudaDevice
from edgellm.engine.device.gpu import Gpu, read_gpu
from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import binary_name
from edgellm.kernels.spec import Kernel, numpy_dtype

GUARD: Final = 256  # bytes between buffers, and what they are aligned to
_PATTERN: Final = 0xA5
_POISON: Final = 0xFF  # NaN in every format, -1 as an integer

Binary = Callable[[Kernel, Sizes, str], bytes]  # the last is the architecture, e.g. "sm_90a"
Needed = tuple[Kernel, Sizes]


def compiled_here(kernel: Kernel, sizes: Sizes, arch: str) -> bytes:
    """By NVRTC, or from its cache; errors are those of `compile_kernel`."""
    from edgellm.kernels.nvrtc import compile_kernel

    return compile_kernel(kernel, sizes, arch).binary


def from_folder(folder: Path) -> Binary:
    """Binaries that `save_cubins` left in `folder`."""

    def read(kernel: Kernel, sizes: Sizes, arch: str) -> bytes:
        path = folder / binary_name(kernel, sizes, arch)
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no binary of {kernel.name} for {arch}, these sizes and these sources ({path.name}): "
                "compile again with --compile, or leave --cubins out where NVRTC is installed"
            )
        return path.read_bytes()

    return read


def save_cubins(folder: Path, needed: Iterable[Needed], arch: str) -> list[Path]:
    """Compile for a GPU that is elsewhere. Neither a GPU nor its driver is needed.

    Raises:
        ConfigError: NVRTC is not installed, or a kernel cannot be compiled for its sizes.
        CompileError: NVRTC refuses a source.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def save(one: Needed) -> Path:
        path = folder / binary_name(*one, arch)
        path.write_bytes(compiled_here(*one, arch))
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sorted(set(pool.map(save, dict.fromkeys(needed))))


class NoEngines:
    """See `edgellm.engine.device.cuda.Engines`: kernels alone are run."""

    used = 0

    def prepare(self, name: str, tensors: dict[str, CudaBuffer], stream: int) -> NoReturn:
        raise ConfigError(f"there is no engine {name}")

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """A GPU, opened, with what the driver says of it."""

    gpu: Gpu
    device: CudaDevice

    @classmethod
    def open(cls, binary: Binary, driver: Any = None) -> Bench:
        """Raises ConfigError or ExecutionError: there is no GPU or no driver."""
        gpu = read_gpu(driver)
        arch = gpu.architecture
        device = CudaDevice(lambda _: NoEngines(), lambda kernel, sizes: binary(kernel, sizes, arch), driver=driver)
        return cls(gpu, device)


class Arena:
    """One piece of device memory, handed out from its start; between buffers stands a pattern that must stay.

    Raises:
        ConfigError: the device has no memory for it.
    """

    def __init__(self, device: CudaDevice, size: int) -> None:
        self.size = size
        self._device = device
        whole = device.zeros((size,), np.uint8)
        assert isinstance(whole, CudaBuffer)
        self._start = whole.address
        self._guards: list[CudaBuffer] = []
        self._next = 0

    def reset(self) -> None:
        """Hand out from the start again."""
        self._next, self._guards = 0, []

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> CudaBuffer:
        """A buffer that holds whatever was there.

        Raises:
            ConfigError: the arena is too small.
        """
        found = np.dtype(dtype)
        size = math.prod(shape) * found.itemsize
        place = self._next + GUARD
        padded = -(-size // GUARD) * GUARD
        if place + padded + GUARD > self.size:
            raise ConfigError(f"{place + padded + GUARD} bytes are needed, and {self.size} were set aside")
        self._guard(self._next, GUARD)
        self._guard(place + size, padded - size + GUARD)
        self._next = place + padded
        return CudaBuffer(self._start + place, shape, found)

    def intact(self) -> bool:
        """Whether nothing was written between the buffers."""
        return all((self._device.download(guard) == _PATTERN).all() for guard in self._guards)

    def _guard(self, place: int, size: int) -> None:
        guard = CudaBuffer(self._start + place, (size,), np.dtype(np.uint8))
        self._device.upload(guard, np.full(size, _PATTERN, np.uint8))
        self._guards.append(guard)

    def inputs(self, tensors: Mapping[str, Array]) -> dict[str, Buffer]:
        """Buffers with these values."""
        made: dict[str, Buffer] = {}
        for name, values in tensors.items():
            made[name] = self.take(values.shape, values.dtype)
            self._device.upload(made[name], values)
        return made

    def outputs(self, kernel: Kernel, sizes: Sizes) -> dict[str, Buffer]:
        """Buffers for what a kernel makes, with whatever was there."""
        return {
            param.name: self.take(param.shape(sizes), numpy_dtype(param.dtype, sizes))
            for param in kernel.params
            if param.role == "out"
        }


def poison(kernel: Kernel, tensors: Mapping[str, Array]) -> None:
    """Fill the outputs, so that what a kernel does not write shows."""
    for param in kernel.params:
        if param.role == "out":
            tensors[param.name].view(np.uint8)[...] = _POISON


def needed_bytes(kernel: Kernel, sizes: Sizes) -> int:
    """Of an arena that holds the tensors of one kernel."""
    tensors = (math.prod(p.shape(sizes)) * numpy_dtype(p.dtype, sizes).itemsize for p in kernel.params)
    return sum(size + 2 * GUARD for size in tensors) + GUARD
