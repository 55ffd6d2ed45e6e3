"""Runs a kernel's CUDA source on the CPU: g++ and `cuda/cuda_cpu.h`, one fiber per thread.

For tests and for the emulated device. What must stay true: a kernel that writes outside its buffers, changes an input
or waits at a barrier that not all threads reach raises `KernelFault`.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import SHIM, cache_folder, definitions, digest, text
from edgellm.kernels.spec import Kernel, Tensors, check_tensors

_GUARD: Final = 256  # bytes before and after every buffer
_PATTERN: Final = 0xA5


class KernelFault(Exception):
    """A kernel broke its contract."""


def available() -> bool:
    """Whether this machine can run kernels so."""
    return shutil.which("g++") is not None


def run(kernel: Kernel, sizes: Sizes, tensors: Tensors, *, reverse: bool = False) -> None:
    """Launch `kernel` on `tensors` (by parameter name, in C order) and write its outputs into them.

    Args:
        reverse: resume threads, and run blocks, in reverse order; the result must be the same.

    Raises:
        ConfigError: there is no g++, or the kernel cannot be compiled for these sizes.
        KernelFault: see the module's docstring.
    """
    check_tensors(kernel, sizes, tensors)
    guarded = {param.name: _Guarded(tensors[param.name]) for param in kernel.params}
    pointers = [ctypes.c_void_p(guarded[param.name].address) for param, _ in kernel.pointers]
    arguments = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
    launch(kernel, sizes, ctypes.addressof(arguments), reverse=reverse)
    for param in kernel.params:
        buffer = guarded[param.name]
        if not buffer.intact():
            raise KernelFault(f"{kernel.name}: wrote outside of {param.name}")
        if param.role != "in":
            tensors[param.name][...] = buffer.values
        elif buffer.values.tobytes() != tensors[param.name].tobytes():
            raise KernelFault(f"{kernel.name}: changed its input {param.name}")


def launch(kernel: Kernel, sizes: Sizes, arguments: int, *, reverse: bool = False) -> None:
    """Launch on host memory as a driver does: `arguments` is the address of the addresses of the parameters' values.

    Raises like `run`, but sees no writes outside of buffers.
    """
    dims = ctypes.c_uint * 3
    grid, block = dims(*kernel.grid(sizes)), dims(kernel.threads(sizes), 1, 1)
    function = getattr(_library(kernel, sizes), f"cpu_{kernel.name}")
    if function(grid, block, ctypes.c_size_t(0), int(reverse), ctypes.c_void_p(arguments)):
        raise KernelFault(f"{kernel.name}: threads wait at a barrier that others do not reach")


class _Guarded:
    """A copy of an array between two guards, 16 bytes aligned."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._memory = np.full(array.nbytes + 2 * _GUARD + 16, _PATTERN, np.uint8)
        start = _GUARD + (-(self._memory.ctypes.data + _GUARD)) % 16
        self._before, self._after = self._memory[:start], self._memory[start + array.nbytes :]
        inside = self._memory[start : start + array.nbytes]
        self.values: NDArray[Any] = inside.view(array.dtype).reshape(array.shape)
        self.values[...] = array
        self.address = int(inside.ctypes.data) if array.nbytes else int(self._memory.ctypes.data) + start

    def intact(self) -> bool:
        return bool((self._before == _PATTERN).all() and (self._after == _PATTERN).all())


@cache
def _library(kernel: Kernel, sizes: Sizes) -> ctypes.CDLL:
    return ctypes.CDLL(str(_compiled(kernel, sizes)))


def _compiled(kernel: Kernel, sizes: Sizes) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        raise ConfigError("running kernels on the CPU needs g++, which is not installed")
    key = digest(kernel, sizes, text(SHIM), _FLAGS_KEY)
    folder = cache_folder()
    target = folder / f"{kernel.name}-{key[:24]}.so"
    if target.exists():
        return target
    macros = [f"-D{entry}" for entry in ("CPU_EMU", *definitions(kernel, sizes))]
    with (
        resources.as_file(resources.files("edgellm.kernels").joinpath("cuda")) as sources,
        tempfile.TemporaryDirectory(dir=folder) as scratch,
    ):
        built = Path(scratch) / target.name
        command = [compiler, *_FLAGS, *macros, "-x", "c++", str(sources / kernel.source), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelFault(f"{kernel.name} does not compile:\n{done.stderr[:4000]}")
        built.replace(target)  # whole or not at all, whoever else builds it
    return target


_FLAGS: Final = ("-std=c++17", "-O2", "-ffp-contract=off", "-w", "-shared", "-fPIC")
_FLAGS_KEY: Final = " ".join(_FLAGS)
