"""The sources of the kernels, the macros they are compiled with and the folder where binaries are kept."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel

SHIM: Final = "cuda_cpu.h"
_INCLUDE: Final = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_IO: Final[Mapping[str, tuple[str, ...]]] = {"bf16": (), "f16": ("IO_F16",), "f32": ("IO_F32",)}


def text(name: str) -> str:
    """The file `name` of kernels/cuda."""
    return resources.files("edgellm.kernels").joinpath("cuda", name).read_text(encoding="utf-8")


@cache
def headers(name: str) -> tuple[str, ...]:
    """The files of kernels/cuda that the file `name` includes, directly or not, but for the CPU shim."""
    found: dict[str, None] = {}
    for header in _INCLUDE.findall(text(name)):
        if header != SHIM:
            found.update(dict.fromkeys((header, *headers(header))))
    return tuple(sorted(found))


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
    parts = [kernel.name, *map(text, (kernel.source, *headers(kernel.source))), *definitions(kernel, sizes), *extra]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def binary_name(kernel: Kernel, sizes: Sizes, arch: str) -> str:
    """File name of a kept binary: equal where everything that it depends on is."""
    return f"{kernel.name}-{digest(kernel, sizes, arch)[:24]}.{arch}.cubin"


def cache_folder() -> Path:
    """Where compiled kernels are kept; made if need be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgellm" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _literal(value: int | float) -> str:
    return f"{value!r}f" if isinstance(value, float) else str(value)
