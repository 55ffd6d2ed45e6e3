"""Global scales: one for every group of matrices that runtimes fuse."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgellm.errors import ConfigError
from edgellm.graph.source import Source
from edgellm.quantize.rounding import checked_amax, global_scale_of, row_pieces


class GlobalScales:
    """Global scales of a checkpoint's matrices; each is looked at once.

    Args:
        groups: module → the modules that share its scale, itself among them.
    """

    def __init__(self, source: Source, groups: Mapping[str, tuple[str, ...]]) -> None:
        self._source, self._groups = source, groups
        self._amaxes: dict[str, np.float32] = {}

    def of(self, module: str) -> np.float32:
        """Twice the smallest scale that fits: blocks near the largest value can take a higher scale too.

        Raises:
            ConfigError: the matrix, or one of its group, has NaN, infinity or values that are too large.
        """
        return np.float32(2) * global_scale_of(max(self._amax(part) for part in self._groups[module]))

    def _amax(self, module: str) -> np.float32:
        if module not in self._amaxes:
            weight = self._source.weight(f"{module}.weight")
            try:
                self._amaxes[module] = max(checked_amax(weight.to_float32(rows)) for rows in row_pieces(weight.shape))
            except ValueError as error:
                raise ConfigError(f"{module}.weight cannot be quantized: {error}") from error
        return self._amaxes[module]
