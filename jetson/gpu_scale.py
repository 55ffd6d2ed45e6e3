"""What a workload is: launches to time, and the bytes that they must move.

Bytes are those that must move: every input read once, every output written once, what is changed in place both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Launch
from edgellm.engine.device.cuda import CudaDevice
from edgellm.jetson.gpu_device import Arena, Needed
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, numpy_dtype

TARGET: Final = 0.7  # of a copy's bandwidth, for tree verification and tree attention
SPLITS: Final = (10, 32, 64)  # numbers of parts of a context that are compiled


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is timed.

    Attributes:
        tokens: of the longest context, and of one pool of pages.
        behind: contexts that a prefill chunk of `chunk` rows comes after.
    """

    spec: ModelSpec
    tokens: int
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    chunk: int
    behind: tuple[int, ...]
    copies: tuple[int, ...]  # bytes
    rounds: int
    minimum_ms: float

    def sizes(self, rows: int, splits: int = 1) -> Sizes:
        """Of a step of `rows` rows."""
        pages, most = -(-self.tokens // 64), max(self.rows)
        return Sizes.of(self.spec, io="bf16", rows=rows, capsule=max(most, 1), max_pages=pages, splits=splits, top_k=4)


@dataclass(frozen=True, slots=True)
class Workload:
    """One program to time. `build` makes its launches; `moved` bytes and `operations` of arithmetic are of all."""

    name: str
    detail: str
    needs: tuple[Needed, ...]
    times: int  # that it is done in one replay
    moved: int
    operations: int
    formula: str
    target: float | None
    arena: int  # bytes
    build: Callable[[CudaDevice, Arena], list[Launch]]


def splits_for(multiprocessors: int, kv_heads: int) -> int:
    """The smallest compiled number of splits that gives every multiprocessor two blocks, else the largest."""
    wanted = 2 * multiprocessors / kv_heads
    return next((splits for splits in SPLITS if splits >= wanted), SPLITS[-1])


def splits_of(splits: int, rows: int) -> int:
    """Of a step of `rows` rows: `edgellm.engine.device.rows.Model.sizes` cuts finer for one row."""
    return splits if rows > 1 else min(3 * splits, 64)


def nbytes(kernel: Kernel, sizes: Sizes, names: Sequence[str] | None = None) -> int:
    """Bytes that must move; `names`: of these parameters alone."""
    total = 0
    for param in kernel.params:
        if names is None or param.name in names:
            size = math.prod(param.shape(sizes)) * numpy_dtype(param.dtype, sizes).itemsize
            total += 2 * size if param.role == "inout" else size
    return total
