"""Largest values and second moments of what goes into the matrices of one layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from edgellm.checkpoint.nvfp4 import F32
from edgellm.errors import ConfigError
from edgellm.quantize.layer_graph import Observed


@dataclass(slots=True)
class InputStatistics:
    """Of one input that some modules share.

    Attributes:
        rows: tokens seen.
        amax: largest magnitude.
        products: f32 [in, in], sum of x x^T; None if not asked for.
    """

    rows: int = 0
    amax: np.float32 = field(default_factory=lambda: np.float32(0))
    products: F32 | None = None

    @property
    def moments(self) -> F32:
        """f32 [in, in], mean of x x^T."""
        assert self.products is not None
        return self.products / np.float32(self.rows)

    def add(self, x: F32, *, products: bool) -> None:
        """Count rows f32 [S, in]."""
        self.rows += len(x)
        self.amax = max(self.amax, np.abs(x).max())
        if products:
            found: F32 = x.T @ x
            if self.products is None:
                self.products = found
            else:
                self.products += found


class LayerStatistics:
    """Statistics of the inputs of the modules that are quantized, and of an attention layer's caches.

    Args:
        chosen: canonical names of the modules that count.
        moments: second moments too.
    """

    def __init__(self, chosen: Collection[str], *, moments: bool) -> None:
        self._chosen, self._moments = chosen, moments
        self._inputs: dict[tuple[str, ...], InputStatistics] = {}
        self.caches: tuple[np.float32, np.float32] | None = None  # amax of keys and values

    def add(self, observed: Observed) -> None:
        """Count one text."""
        for modules, x in observed.inputs.items():
            self.add_inputs(modules, x)
        if observed.caches is not None:
            before = self.caches or (np.float32(0), np.float32(0))
            keys, values = (max(amax, np.abs(x).max()) for amax, x in zip(before, observed.caches, strict=True))
            if not np.isfinite(keys + values):
                layer = next(iter(observed.inputs))[0].rpartition(".")[0]
                raise ConfigError(f"{layer} cannot be calibrated: its keys or values are not finite")
            self.caches = (keys, values)

    def add_inputs(self, modules: tuple[str, ...], x: F32) -> None:
        """Count rows f32 [S, in] that go into `modules`.

        Raises:
            ConfigError: they are not finite.
        """
        if not np.isfinite(x).all():
            raise ConfigError(f"{modules[0]} cannot be calibrated: what goes into it is not finite")
        if chosen := tuple(module for module in modules if module in self._chosen):
            self._inputs.setdefault(chosen, InputStatistics()).add(x, products=self._moments)

    def take(self) -> Iterator[tuple[tuple[str, ...], InputStatistics]]:
        """(modules, their statistics), each forgotten when it is handed out."""
        while self._inputs:
            yield self._inputs.popitem()
