"""Running texts through a model layer by layer, to see what goes into its matrices and its KV caches.

What must stay true: memory holds one layer, the texts' hidden rows and, with error feedback, the second moments of one
layer's inputs; a run that was stopped goes on behind its last whole layer. With error feedback a layer sees what the
quantized layers before it return, as it will when the quantized model runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import F32, Nvfp4
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.safetensors_file import TensorFile
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.weights import Weight, WeightKind
from edgellm.engine.registry import usable_cores
from edgellm.errors import ConfigError
from edgellm.graph.source import Source, vector
from edgellm.progress import Progress
from edgellm.quantize.calibration import Calibration, nvfp4_tensors, write_tensors
from edgellm.quantize.error_feedback import compensate
from edgellm.quantize.global_scales import GlobalScales
from edgellm.quantize.input_statistics import LayerStatistics
from edgellm.quantize.layer_graph import LayerGraph
from edgellm.quantize.search import search_scales

_HIDDEN: Final = "hidden.safetensors"  # rows of every text before the layer "next"
_ROWS: Final = 1024  # of a matrix, in one product with second moments


def calibrate(
    source: Source,
    texts: Sequence[Sequence[int]],
    folder: Path,
    scales: GlobalScales,
    modules: Sequence[str],
    *,
    feedback: bool,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Run `texts` through all layers.

    Args:
        texts: token ids of each, two at least.
        folder: where what is found is kept, for the caller to remove; a stopped run goes on there.
        scales: global scales of the matrices.
        modules: those that are quantized.
        feedback: quantize them here, each column making up for the errors of those before it.
        progress: called with ("calibrate", layers done, layers in all).

    Raises:
        ConfigError: naming the module whose inputs are not finite, or which cannot be quantized.
    """
    folder.mkdir(exist_ok=True)
    run = _Run(source, texts, folder, scales, frozenset(modules), feedback, threads or usable_cores())
    return run.all_layers(progress or (lambda phase, done, total: None))


@dataclass(frozen=True, slots=True)
class _Run:
    source: Source
    texts: Sequence[Sequence[int]]
    folder: Path
    scales: GlobalScales
    modules: frozenset[str]
    feedback: bool
    threads: int

    def all_layers(self, progress: Progress) -> Calibration:
        spec = self.source.spec
        layers = len(spec.layers)
        total = layers + spec.mtp_layers
        first, rows = self._resume()
        for layer in range(first, layers):
            progress("calibrate", layer, total)
            rows = self._decoder_layer(layer, rows)
            hidden = {str(number): text for number, text in enumerate(rows)}
            write_tensors(self.folder / _HIDDEN, {"next": np.array(layer + 1, np.int64), **hidden})
        progress("calibrate", layers, total)
        head_inputs = [self._final_norm(text) for text in rows]
        if spec.mtp_layers:
            pairs = [text[:-1] for text in head_inputs]
            statistics = self._statistics()
            drafted = self._run(self.source, None, pairs, statistics)
            self._keep("mtp", "mtp.layers.0.self_attn", statistics)
            head_inputs += drafted
        statistics = self._statistics()
        for text in head_inputs:
            statistics.add_inputs(("lm_head",), text)
        self._keep("head", "", statistics)
        progress("calibrate", total, total)
        return Calibration.open([path for path in self.folder.glob("*.safetensors") if path.name != _HIDDEN])

    def _resume(self) -> tuple[int, list[F32]]:
        """The next layer, and what goes into it for each text."""
        if (self.folder / _HIDDEN).is_file():
            file = TensorFile.open(self.folder / _HIDDEN)
            return int(file.tensor("next")), [file.tensor(str(number)) for number in range(len(self.texts))]
        table = self.source.tensor("embed_tokens.weight")
        return 0, [np.asarray(table[np.array(text)], np.float32) for text in self.texts]

    def _decoder_layer(self, layer: int, rows: list[F32]) -> list[F32]:
        """Keep what is found; what the layer returns for each text."""
        statistics = self._statistics()
        out = self._run(self.source, layer, rows, statistics)
        matrices = self._keep(f"layer-{layer:03}", f"layers.{layer}.self_attn", statistics)
        return self._run(_Replaced(self.source, matrices), layer, rows) if matrices else out

    def _run(
        self, source: Source, layer: int | None, rows: list[F32], statistics: LayerStatistics | None = None
    ) -> list[F32]:
        """What a layer returns for each text; what goes into its matrices is counted in `statistics`."""
        out: list[F32] = []
        longest = max(map(len, self.texts))
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            graph = LayerGraph(source, layer, Path(name), positions=longest, threads=self.threads)
            for text, ids in zip(rows, self.texts, strict=True):
                seen = graph.run(text, np.array(ids if layer is not None else ids[1:], np.int64))
                if statistics is not None:
                    statistics.add(seen)
                out.append(seen.out)
        return out

    def _statistics(self) -> LayerStatistics:
        return LayerStatistics(self.modules, moments=self.feedback)

    def _keep(self, name: str, attention: str, statistics: LayerStatistics) -> dict[str, Nvfp4]:
        """Write what was found of a layer; its quantized matrices, if there is error feedback."""
        tensors: dict[str, NDArray[Any]] = {}
        matrices: dict[str, Nvfp4] = {}
        if statistics.caches is not None:
            tensors |= {
                f"{attention}.{part}_amax": np.array(x) for part, x in zip("kv", statistics.caches, strict=True)
            }
        for modules, found in statistics.take():
            tensors |= {f"{module}.input_amax": np.array(found.amax) for module in modules}
            if found.products is not None:
                moments = found.moments
                for module in modules:
                    matrices[module], error = self._compensated(module, moments)
                    tensors |= nvfp4_tensors(module, matrices[module])
                    tensors[f"{module}.output_error"] = np.array(error, np.float32)
        write_tensors(self.folder / f"{name}.safetensors", tensors)
        return matrices

    def _compensated(self, module: str, moments: F32) -> tuple[Nvfp4, float]:
        scale = self.scales.of(module)
        weight = self.source.weight(f"{module}.weight").to_float32()
        if not np.diagonal(moments).any():  # nothing went in: all errors are alike
            return search_scales(weight, global_scale=scale), 0.0
        try:
            found = compensate(weight, moments, global_scale=scale)
        except ValueError as error:
            raise ConfigError(f"{module}.weight cannot be quantized: {error}") from error
        lost = total = 0.0
        for start in range(0, len(weight), _ROWS):
            rows = slice(start, start + _ROWS)
            lost += _outputs(weight[rows] - found.to_float32(rows), moments)
            total += _outputs(weight[rows], moments)
        return found, (lost / total) ** 0.5 if total > 0 else 0.0

    def _final_norm(self, x: F32) -> F32:
        scale = np.float32(1) + vector(self.source, "norm.weight")
        mean = np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(self.source.spec.rms_eps)
        normed: F32 = x / np.sqrt(mean) * scale
        return normed


def _outputs(matrix: F32, moments: F32) -> float:
    """Sum over the rows w of the mean of (w x)²."""
    return max(0.0, float(np.sum((matrix @ moments) * matrix, dtype=np.float64)))


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A source some of whose matrices are quantized."""

    source: Source
    matrices: Mapping[str, Nvfp4]  # by module

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    def tensor(self, name: str) -> NDArray[Any]:
        return self.source.tensor(name)

    def weight(self, name: str) -> Weight:
        matrix = self.matrices.get(name.removesuffix(".weight"))
        return self.source.weight(name) if matrix is None else Nvfp4Weight(matrix, None)

    def kind(self, name: str) -> WeightKind:
        return "nvfp4" if name.removesuffix(".weight") in self.matrices else self.source.kind(name)
