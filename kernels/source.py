"""The sources of the kernels and the macros they are compiled with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel

COMMON: Final = "common.cuh"
SHIM: Final = "cuda_cpu.h"
_IO: Final[Mapping[str, tuple[str, ...]]] = {"bf16": (), "f16": ("IO_F16",), "f32": ("IO_F32",)}


def text(name: str) -> str:
    """The file `name` of kernels/cuda."""
    return resources.files("edgellm.kernels").joinpath("cuda", name).read_text(encoding="utf-8")


def definitions(kernel: Kernel, sizes: Sizes) -> list[str]:
    """Macros as ``NAME=value`` or ``NAME``.

    Raises:
        ConfigError: the kernel cannot be compiled for these sizes.
    """
    reason = kernel.refuses(sizes)
    if reason is not None:
        raise ConfigError(f"kernel {kernel.name}: {reason}")
    values = kernel.defines(sizes)
    return [*_IO[sizes.io], *(f"{name}={_literal(value)}" for name, value in values.items())]


def digest(kernel: Kernel, sizes: Sizes, *extra: str) -> str:
    """SHA-256 of everything that a binary of the kernel depends on, and of `extra`, as 64 hexadecimal digits."""
    parts = [kernel.name, text(kernel.source), text(COMMON), *definitions(kernel, sizes), *extra]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _literal(value: int | float) -> str:
    return f"{value!r}f" if isinstance(value, float) else str(value)
