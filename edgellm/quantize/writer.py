"""Writing an NVFP4 checkpoint in ModelOpt's layout, shard by shard.

Every file of the source becomes one of the same name; matrices that are not quantized and tensors of other models
(vision) are copied. What must stay true: memory holds one matrix; a shard appears whole or not at all, and the folder
cannot be opened as a checkpoint before it is complete; a run that was stopped goes on behind its last whole shard.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.assembly import PLAIN
from edgellm.checkpoint.module_patterns import canonical
from edgellm.checkpoint.nvfp4 import BLOCK, E4M3, F32, Nvfp4
from edgellm.checkpoint.reader import INDEX_FILE, QUANT_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import DTYPES, TensorFile, write_safetensors
from edgellm.checkpoint.tokenizer_files import read_json
from edgellm.errors import ConfigError
from edgellm.progress import Progress
from edgellm.quantize.plan import Recipe, chosen_modules
from edgellm.quantize.rounding import checked_amax, global_scale_of, row_pieces
from edgellm.quantize.search import search_scales

STATE_FILE: Final = "quantize-state.json"
REPORT_FILE: Final = "quantize-report.json"
_NOT_COPIED: Final = ("config.json", INDEX_FILE, QUANT_FILE, STATE_FILE, REPORT_FILE)
_Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Error:
    """What one matrix lost."""

    module: str
    relative: float  # root of (sum of squared errors / sum of squared weights)


def quantize_checkpoint(
    source: str | Path, out: str | Path, recipe: Recipe, *, progress: Progress | None = None
) -> list[Error]:
    """Write the checkpoint `source` to the folder `out` with its matrices in NVFP4; what each of them lost.

    Activations stay as they are (W4A16): there is no ``input_scale``.

    Args:
        progress: called with ("quantize", bytes of the source done, bytes in all).

    Raises:
        CheckpointError: the source is broken.
        ConfigError: it is quantized already, `out` holds something else, or the recipe fits no module.
    """
    checkpoint, target = Checkpoint.open(source), Path(out)
    matrices = [name for name, shape in checkpoint.spec.expected_tensors().items() if len(shape) == 2]
    kinds = {name: checkpoint.kind(name) for name in matrices}
    if quantized := [name for name, kind in kinds.items() if kind not in PLAIN.values()]:
        raise ConfigError(f"{checkpoint.path} is quantized already: {quantized[0]} is {kinds[quantized[0]]}")
    groups = chosen_modules(recipe, checkpoint.spec.expected_tensors())
    job = _Job(checkpoint, target, groups, progress)
    job.begin(recipe)
    for path in checkpoint.weight_files:
        job.shard(path)
    job.finish()
    return job.errors


class _Job:
    def __init__(
        self, checkpoint: Checkpoint, out: Path, groups: Mapping[str, tuple[str, ...]], progress: Progress | None
    ) -> None:
        self._checkpoint, self._out, self._groups, self._progress = checkpoint, out, groups, progress
        self._state: dict[str, Any] = {}
        self._amaxes: dict[str, np.float32] = {}  # of what was looked at: fused parts ask for each other's
        self._done = 0
        self._total = sum(path.stat().st_size for path in checkpoint.weight_files)

    @property
    def errors(self) -> list[Error]:
        return [Error(**entry) for shard in self._state["shards"].values() for entry in shard["errors"]]

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, or find what an earlier run of the same job left."""
        state_file = self._out / STATE_FILE
        digest = hashlib.sha256()
        for path in (*self._checkpoint.weight_files, self._checkpoint.path / "config.json"):
            status = path.stat()
            digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
        job = {"source": digest.hexdigest(), "recipe": asdict(recipe), "edgellm": importlib.metadata.version("edgellm")}
        job = json.loads(json.dumps(job))
        if state_file.is_file():
            self._state = read_json(state_file)
            if self._state.get("job") != job:
                raise ConfigError(f"{self._out} holds part of another job: remove it, or choose another folder")
        elif self._out.exists() and any(self._out.iterdir()):
            raise ConfigError(f"{self._out} is not empty")
        else:
            self._out.mkdir(parents=True, exist_ok=True)
            self._state = {"job": job, "shards": {}}
            self._save()

    def shard(self, path: Path) -> None:
        """Quantize one file of the source, unless that is done."""
        if path.name not in self._state["shards"]:
            file = TensorFile.open(path)
            layout = self._layout(file)
            errors: list[Error] = []
            part = self._out / f"{path.name}.part"
            write_safetensors(part, layout, self._tensors(file, errors))
            part.rename(self._out / path.name)
            self._state["shards"][path.name] = {"names": list(layout), "errors": [asdict(error) for error in errors]}
            self._save()
        else:
            self._advance(path.stat().st_size)

    def finish(self) -> None:
        """Everything beside the weights; ``config.json``, without which nothing opens, last."""
        for path in sorted(self._checkpoint.path.iterdir()):
            if path.is_file() and path.suffix != ".safetensors" and path.name not in _NOT_COPIED:
                shutil.copyfile(path, self._out / path.name)
        shards = self._state["shards"]
        if (self._checkpoint.path / INDEX_FILE).is_file():
            weight_map = {name: shard for shard, made in shards.items() for name in made["names"]}
            size = sum((self._out / shard).stat().st_size for shard in shards)
            _write_json(self._out / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})
        _write_json(self._out / REPORT_FILE, [asdict(error) for error in self.errors])
        claim = self._claim()
        _write_json(self._out / QUANT_FILE, claim)
        config = {**self._checkpoint.config, "quantization_config": _in_config(claim)}
        _write_json(self._out / "config.json", config)
        (self._out / STATE_FILE).unlink()
        self._advance(self._total)  # headers are not counted on the way

    def _claim(self) -> dict[str, Any]:
        """`hf_quant_config.json`: every linear module that was left alone is excluded by its name in the files."""
        spared = []
        for path in self._checkpoint.weight_files:
            for name, entry in TensorFile.open(path).entries.items():
                module = name.removesuffix(".weight")
                if name.endswith(".weight") and len(entry.shape) > 1 and canonical(module) not in self._groups:
                    spared.append(module)
        return {
            "producer": {"name": "edgellm", "version": importlib.metadata.version("edgellm")},
            "quantization": {
                "quant_algo": "W4A16_NVFP4",
                "kv_cache_quant_algo": None,
                "group_size": BLOCK,
                "exclude_modules": spared,
            },
        }

    def _layout(self, file: TensorFile) -> _Layout:
        layout: _Layout = {}
        for name, entry in file.entries.items():
            module = name.removesuffix(".weight")
            if canonical(module) not in self._groups:
                layout[name] = (DTYPES[entry.dtype], entry.shape)
                continue
            rows, columns = entry.shape
            layout[name] = (np.dtype(np.uint8), (rows, columns // 2))
            layout[f"{module}.weight_scale"] = (E4M3, (rows, columns // BLOCK))
            layout[f"{module}.weight_scale_2"] = (np.dtype(np.float32), ())
        return layout

    def _tensors(self, file: TensorFile, errors: list[Error]) -> Iterator[NDArray[Any]]:
        for name, entry in file.entries.items():
            module = canonical(name.removesuffix(".weight"))
            if module in self._groups:
                matrix, lost = self._quantized(module)
                errors.append(Error(module, lost))
                yield matrix.packed
                yield matrix.block_scales
                yield np.array(matrix.global_scale, np.float32)
            else:
                yield file.tensor(name)
            self._advance(entry.stop - entry.start)

    def _quantized(self, module: str) -> tuple[Nvfp4, float]:
        weight = self._checkpoint.weight(f"{module}.weight")
        largest = max(self._amax(part) for part in self._groups[module])
        # Twice the smallest one that fits: blocks near the largest value can take a higher scale too.
        scale = np.float32(2) * global_scale_of(largest)
        packed, block_scales = [], []
        squares = lost = 0.0
        for rows in row_pieces(weight.shape):
            values: F32 = weight.to_float32(rows)
            piece = search_scales(values, global_scale=scale)
            packed.append(piece.packed)
            block_scales.append(piece.block_scales)
            squares += float(np.square(values, dtype=np.float64).sum())
            lost += float(np.square(values - piece.to_float32(), dtype=np.float64).sum())
        found = Nvfp4(np.concatenate(packed), np.concatenate(block_scales), scale)
        return found, (lost / squares) ** 0.5 if squares else 0.0

    def _amax(self, module: str) -> np.float32:
        if module not in self._amaxes:
            weight = self._checkpoint.weight(f"{module}.weight")
            try:
                self._amaxes[module] = max(checked_amax(weight.to_float32(rows)) for rows in row_pieces(weight.shape))
            except ValueError as error:
                raise ConfigError(f"{module}.weight cannot be quantized: {error}") from error
        return self._amaxes[module]

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress("quantize", min(self._done, self._total), self._total)

    def _save(self) -> None:
        part = self._out / f"{STATE_FILE}.part"
        _write_json(part, self._state)
        part.rename(self._out / STATE_FILE)


def _in_config(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the form of ``config.json``."""
    said = claim["quantization"]
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    return {
        "quant_method": "modelopt",
        "quant_algo": said["quant_algo"],
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": said["exclude_modules"],
        "producer": claim["producer"],
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
