"""`Kernel`: what everything outside a kernel's source needs to know to compile, launch, test and register it.

The parameters of a kernel are pointers only, in TensorRT's order: inputs, then outputs. A buffer that is changed in
place ("inout") stands in both, as the aliased tensors of a plugin do: `const T* x` among the inputs and `T* x_out`
among the outputs, with the same address. What must stay true: the order of `params` is the order in the CUDA source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgellm.kernels.sizes import Sizes

Dtype = Literal["io", "f32", "i32", "e4m3"]
Role = Literal["in", "inout", "out"]
Shape = tuple[int, ...]
Tensors = Mapping[str, NDArray[Any]]
Reference = Callable[[Sizes, Tensors], None]

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}

# The control block i32[8]: what changes from step to step. Kernels read it, the host or tree_accept writes it.
CONTROL: Final = 8
CONTEXT: Final = 0  # committed tokens of the slot
COUNT: Final = 1  # rows of this step that mean something, at most Sizes.rows
TAIL_START: Final = 2  # draft rows that already stand in the tail, before this step's
# First visible token of the pages, which has position 0: 0, or 1 for the MTP layer, where row 0 belongs to no token.
FIRST: Final = 3
POOL: Final = 4  # pages of a layer's pool, for kernels over all layers: a pool's size is known when a model is opened


@dataclass(frozen=True, slots=True)
class Param:
    """One buffer."""

    name: str
    dtype: Dtype
    role: Role
    shape: Callable[[Sizes], Shape]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `extern "C"` kernel."""

    name: str
    source: str  # file in kernels/cuda
    params: tuple[Param, ...]  # inputs and inouts, then outputs
    grid: Callable[[Sizes], tuple[int, int, int]]  # blocks
    threads: Callable[[Sizes], int]  # of a block
    defines: Callable[[Sizes], Mapping[str, int | float]]
    reference: Reference  # writes the outputs of the tensors it is given
    refuses: Callable[[Sizes], str | None]  # why it cannot be compiled for these sizes; None: it can
    plugin: bool  # launched by TensorRT too: at most 48 KiB of shared memory

    @property
    def pointers(self) -> tuple[tuple[Param, bool], ...]:
        """Parameters of the CUDA function in order; the flag says whether it is the writable pointer."""
        inputs = [(param, False) for param in self.params if param.role != "out"]
        outputs = [(param, True) for param in self.params if param.role == "inout"]
        return (*inputs, *outputs, *((param, True) for param in self.params if param.role == "out"))


def numpy_dtype(dtype: Dtype, sizes: Sizes) -> np.dtype[Any]:
    """The NumPy type of a buffer; E4M3 is ``float8_e4m3fn``."""
    return _DTYPES[sizes.io if dtype == "io" else dtype]


def empty_tensors(kernel: Kernel, sizes: Sizes) -> dict[str, NDArray[Any]]:
    """Zeroed tensors for every parameter."""
    return {p.name: np.zeros(p.shape(sizes), numpy_dtype(p.dtype, sizes)) for p in kernel.params}


def check_tensors(kernel: Kernel, sizes: Sizes, tensors: Tensors) -> None:
    """Raises ValueError: a tensor is missing, or has another shape, type or layout than the kernel's."""
    for param in kernel.params:
        if param.name not in tensors:
            raise ValueError(f"{kernel.name}: tensor {param.name!r} is missing")
        found, shape, dtype = tensors[param.name], param.shape(sizes), numpy_dtype(param.dtype, sizes)
        if found.shape != shape or found.dtype != dtype or not found.flags.c_contiguous:
            raise ValueError(
                f"{kernel.name}: {param.name} must be {dtype} {shape} in C order, not {found.dtype} {found.shape}"
            )
