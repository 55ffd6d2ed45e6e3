"""`Gpu`: what a CUDA driver says of one GPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgellm.errors import ConfigError, ExecutionError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Clocks are the highest that it has, not those it runs at; 0: the driver does not say."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_bits: int
    cuda_driver: str  # newest CUDA that the driver runs

    @property
    def architecture(self) -> str:
        """As compilers name it: the one with all features of the chip, from compute capability 9.0 on."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def load_driver() -> Any:
    """The module `cuda.bindings.driver`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ConfigError(f"running on a GPU needs edgellm[kernels]: {error}") from error


def checked(result: Sequence[Any], what: str = "") -> Any:
    """The value of a driver call. Raises ExecutionError: it failed."""
    if int(result[0]) != 0:
        name = getattr(result[0], "name", result[0])
        raise ExecutionError(f"CUDA: {f'{what}: ' if what else ''}{name}")
    return None if len(result) == 1 else result[1] if len(result) == 2 else tuple(result[1:])


def read_gpu(driver: Any = None, ordinal: int = 0) -> Gpu:
    """Ask the driver.

    Args:
        driver: the module `cuda.bindings.driver` or something like it.

    Raises:
        ConfigError: there is no driver.
        ExecutionError: there is no GPU.
    """
    cuda: Any = load_driver() if driver is None else driver
    try:
        checked(cuda.cuInit(0), "cuInit")
    except RuntimeError as error:  # cuda.bindings finds no libcuda
        raise ConfigError(f"there is no NVIDIA driver: {error}") from error
    device = checked(cuda.cuDeviceGet(ordinal), "cuDeviceGet")

    def attribute(name: str) -> int:
        wanted = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(checked(cuda.cuDeviceGetAttribute(wanted, device), name))

    version = int(checked(cuda.cuDriverGetVersion()))
    return Gpu(
        name=checked(cuda.cuDeviceGetName(256, device)).split(b"\0")[0].decode(errors="replace").strip(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(checked(cuda.cuDeviceTotalMem(device))),
        clock_mhz=attribute("CLOCK_RATE") // 1000,
        memory_clock_mhz=attribute("MEMORY_CLOCK_RATE") // 1000,
        bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        cuda_driver=f"{version // 1000}.{version % 1000 // 10}",
    )
