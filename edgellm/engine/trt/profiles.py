"""Optimization profiles: which sizes of its inputs a graph is built for.

The number of tokens is one point per profile, so that every kernel is chosen and unrolled for it; only what has been
committed before, the past, varies within a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from edgellm.errors import ConfigError

Range = tuple[int, int, int]  # least, best, most
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Shapes of one input."""

    least: Shape
    best: Shape
    most: Shape


Sizes = Mapping[str, Range]  # symbolic dimension → sizes


def step_sizes(tokens: int, rows: Range, context: int) -> Sizes:
    """Sizes of a step over `tokens` tokens.

    Args:
        tokens: S.
        rows: R, rows of logits.
        context: longest past, P; T is P + S. Kernels are chosen for a quarter of it.
    """
    past = (0, context // 4, context)
    return {"S": (tokens,) * 3, "R": rows, "P": past, "T": (past[0] + tokens, past[1] + tokens, past[2] + tokens)}


def point(size: int) -> Range:
    """A range of one size."""
    return size, size, size


def input_ranges(graph: Path, sizes: Sizes) -> dict[str, ShapeRange]:
    """Ranges of the inputs of `graph` that have symbolic dimensions.

    Raises:
        ConfigError: a symbolic dimension has no size.
    """
    ranges = {}
    for value in onnx.load(graph, load_external_data=False).graph.input:
        dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        symbols = [dim for dim in dims if isinstance(dim, str)]
        if lacking := [dim for dim in symbols if dim not in sizes]:
            raise ConfigError(f"{graph.name}: input {value.name!r} has dimension {lacking[0]!r}, which has no size")
        if symbols:
            ranges[value.name] = ShapeRange(*(_shape(dims, sizes, end) for end in range(3)))
    return ranges


def _shape(dims: Sequence[int | str], sizes: Sizes, end: int) -> Shape:
    return tuple(sizes[dim][end] if isinstance(dim, str) else dim for dim in dims)
