"""Sizes of the Gated DeltaNet kernels, and the delta rule token by token in float64 without any rounding between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from kernel_parity import Arrays, largest_difference
from numpy.typing import NDArray

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.reference import F64, delta_step
from edgellm.kernels.inputs import OPERANDS, accept, family, fill_operands, fill_raw, random_tree
from edgellm.kernels.sizes import Io, Sizes

__all__ = [
    "CHAIN",
    "OPERANDS",
    "SPEC",
    "Sequential",
    "accept",
    "assert_close",
    "assert_rounded",
    "delta_sizes",
    "family",
    "fill_operands",
    "fill_raw",
    "random_tree",
]

SPEC: Final = ModelSpec.from_config(PRESETS["tiny"].config)
CHAIN: Final = range(-1, 31)  # parents of a chain


def delta_sizes(io: Io, rows: int, heads: tuple[int, int, int] = (2, 4, 32), **profile: int) -> Sizes:
    """Sizes of (key heads, value heads, width of both)."""
    keys, values, width = heads
    made = Sizes.of(SPEC, io=io, rows=rows, max_pages=1, **profile)
    return dataclasses.replace(made, key_heads=keys, value_heads=values, key_dim=width, value_dim=width)


class Sequential:
    """States and outputs of tokens by the definition; heads of keys serve their value heads."""

    def __init__(self, state: NDArray[Any]) -> None:
        self.state = state.astype(np.float64)

    def token(self, tensors: Arrays, row: int, before: F64 | None = None) -> tuple[F64, F64]:
        """(state, output) after row `row` of the operands, from `before` or the state."""
        q, k, v, g, beta = (tensors[name][row].astype(np.float64) for name in OPERANDS)
        group = len(v) // len(k)
        q, k = (np.repeat(x, group, axis=0) for x in (q * q.shape[-1] ** -0.5, k))
        return delta_step(self.state if before is None else before, q, k, v, np.exp(g), beta)

    def chain(self, tensors: Arrays, count: int) -> F64:
        """Outputs of `count` tokens; the state moves on."""
        outputs = []
        for row in range(count):
            self.state, out = self.token(tensors, row)
            outputs.append(out)
        return np.stack(outputs)

    def tree(self, tensors: Arrays, parents: Sequence[int]) -> tuple[list[F64], F64]:
        """(state, output) of every node; the state stays."""
        states: list[F64] = []
        outputs = []
        for row, parent in enumerate(parents):
            state, out = self.token(tensors, row, states[parent] if parent >= 0 else None)
            states.append(state)
            outputs.append(out)
        return states, np.stack(outputs)


def assert_rounded(made: NDArray[Any], expected: NDArray[Any], slack: float = 1e-6) -> None:
    """Equal up to one unit in the last place of the type, which a tie may cost, and `slack`."""
    np.testing.assert_allclose(
        made.astype(np.float64), expected.astype(np.float64), rtol=float(ml_dtypes.finfo(made.dtype).eps), atol=slack
    )


def assert_close(made: NDArray[Any], expected: NDArray[Any], limit: float = 1e-5) -> None:
    """Equal up to `limit`; NaN is not."""
    assert largest_difference(made, expected) <= limit
