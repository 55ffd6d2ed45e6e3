"""What calibration found out, in a folder: one safetensors file per layer, kept until quantizing has ended.

A layer's file holds ``MODULE.input_amax`` f32 [] of every matrix, ``ATTENTION.k_amax`` and ``ATTENTION.v_amax`` of an
attention layer, and with error feedback the NVFP4 matrix (``MODULE.weight``, ``.weight_scale``, ``.weight_scale_2``)
and ``MODULE.output_error``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import E2M1_MAX, E4M3_MAX, Nvfp4
from edgellm.checkpoint.safetensors_file import TensorFile, write_safetensors
from edgellm.quantize.rounding import global_scale_of


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a safetensors file that appears whole or not at all."""
    part = path.with_suffix(".part")
    write_safetensors(part, {name: (array.dtype, array.shape) for name, array in tensors.items()}, tensors.values())
    part.rename(path)


@dataclass(frozen=True, slots=True)
class Calibration:
    """All layers' files, opened."""

    _files: Mapping[str, TensorFile]  # by tensor name

    @classmethod
    def open(cls, paths: list[Path]) -> Calibration:
        """Open the layers' files."""
        return cls({name: file for file in map(TensorFile.open, paths) for name in file.entries})

    def input_scale(self, module: str) -> np.float32:
        """amax / (6 · 448) of the module's inputs; as if amax were 6 where nothing but zeros went in."""
        amax = self._value(f"{module}.input_amax")
        return global_scale_of(amax if amax > 0 else np.float32(E2M1_MAX))

    def kv_scale(self, name: str) -> np.float32 | None:
        """amax / 448 of a cache, 1 if that is 0; None for what is no cache of the model.

        Args:
            name: the attention's, with ``.k`` or ``.v``.
        """
        if f"{name}_amax" not in self._files:
            return None
        amax = self._value(f"{name}_amax")
        return amax / np.float32(E4M3_MAX) if amax > 0 else np.float32(1)

    def matrix(self, module: str) -> Nvfp4 | None:
        """The module's matrix with error feedback; None without."""
        if f"{module}.weight" not in self._files:
            return None
        packed, scales = self._tensor(f"{module}.weight"), self._tensor(f"{module}.weight_scale")
        return Nvfp4(packed, scales, self._value(f"{module}.weight_scale_2"))

    def output_error(self, module: str) -> float | None:
        """Root of (mean squared error of the outputs / mean square of the outputs); None without error feedback."""
        return float(self._value(f"{module}.output_error")) if f"{module}.output_error" in self._files else None

    def _value(self, name: str) -> np.float32:
        return np.float32(self._tensor(name))

    def _tensor(self, name: str) -> NDArray[Any]:
        return self._files[name].tensor(name)


def nvfp4_tensors(module: str, matrix: Nvfp4) -> dict[str, NDArray[Any]]:
    """A matrix as the tensors of a file, in ModelOpt's layout."""
    return {
        f"{module}.weight": matrix.packed,
        f"{module}.weight_scale": matrix.block_scales,
        f"{module}.weight_scale_2": np.array(matrix.global_scale, np.float32),
    }
