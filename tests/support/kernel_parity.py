"""Runs a kernel on the CPU in both fiber orders and its reference on the same tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.kernels import emulate
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, Tensors, check_tensors

needs_compiler = pytest.mark.skipif(not emulate.available(), reason="running CUDA sources on the CPU needs g++")

Arrays = dict[str, NDArray[Any]]


def run_both(kernel: Kernel, sizes: Sizes, tensors: Tensors) -> tuple[Arrays, Arrays]:
    """(what the kernel made, what the reference made), given equal tensors; both fiber orders must agree exactly."""
    check_tensors(kernel, sizes, tensors)
    made, again, expected = ({name: array.copy() for name, array in tensors.items()} for _ in range(3))
    emulate.run(kernel, sizes, made)
    emulate.run(kernel, sizes, again, reverse=True)
    for param in kernel.params:
        assert made[param.name].tobytes() == again[param.name].tobytes(), f"{param.name}: fiber orders differ"
    kernel.reference(sizes, expected)
    return made, expected


def largest_difference(made: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest absolute difference; NaN counts as infinite."""
    difference = np.abs(made.astype(np.float64) - expected.astype(np.float64))
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
