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
from collections.abc import Iterator, Mapping, Sequence
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
from edgellm.quantize.calibrate import calibrate
from edgellm.quantize.calibration import Calibration, nvfp4_tensors
from edgellm.quantize.global_scales import GlobalScales
from edgellm.quantize.plan import Recipe, chosen_modules
from edgellm.quantize.rounding import row_pieces
from edgellm.quantize.search import search_scales

STATE_FILE: Final = "quantize-state.json"
CALIBRATION: Final = "calibration"  # folder
REPORT_FILE: Final = "quantize-report.json"
_NOT_COPIED: Final = ("config.json", INDEX_FILE, QUANT_FILE, STATE_FILE, REPORT_FILE)
_Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Error:
    """What one matrix lost."""

    module: str
    relative: float  # root of (sum of squared errors / sum of squared weights)
    output: float | None = None  # the same of the module's outputs on the calibration texts; with error feedback only


def quantize_checkpoint(
    source: str | Path,
    out: str | Path,
    recipe: Recipe,
    *,
    texts: Sequence[Sequence[int]] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Error]:
    """Write the checkpoint `source` to the folder `out` with its matrices in NVFP4; what each of them lost.

    Args:
        texts: token ids of texts to calibrate on, two at least of each. They give the scales of activations and of an
            FP8 KV cache; without them activations stay as they are (W4A16) and nothing is said of the KV cache.
        threads: of calibration; one for each physical core by default.
        progress: called with ("calibrate", layers done, layers in all) and ("quantize", bytes of the source done,
            bytes in all).

    Raises:
        CheckpointError: the source is broken.
        ConfigError: it is quantized already, `out` holds something else, the recipe fits no module or needs texts, or
            a module cannot be calibrated or quantized.
    """
    if recipe.feedback and not texts:
        raise ConfigError("error feedback needs texts to calibrate on")
    checkpoint, target = Checkpoint.open(source), Path(out)
    matrices = [name for name, shape in checkpoint.spec.expected_tensors().items() if len(shape) == 2]
    kinds = {name: checkpoint.kind(name) for name in matrices}
    if quantized := [name for name, kind in kinds.items() if kind not in PLAIN.values()]:
        raise ConfigError(f"{checkpoint.path} is quantized already: {quantized[0]} is {kinds[quantized[0]]}")
    groups = chosen_modules(recipe, checkpoint.spec.expected_tensors())
    job = _Job(checkpoint, target, groups, recipe, progress)
    job.begin(texts)
    if texts:
        job.calibrate(texts, threads)
    for path in checkpoint.weight_files:
        job.shard(path)
    job.finish()
    return job.errors


class _Job:
    def __init__(
        self,
        checkpoint: Checkpoint,
        out: Path,
        groups: Mapping[str, tuple[str, ...]],
        recipe: Recipe,
        progress: Progress | None,
    ) -> None:
        self._checkpoint, self._out, self._groups, self._recipe = checkpoint, out, groups, recipe
        self._progress = progress
        self._state: dict[str, Any] = {}
        self._scales = GlobalScales(checkpoint, groups)
        self._calibration: Calibration | None = None
        self._done = 0
        self._total = sum(path.stat().st_size for path in checkpoint.weight_files)

    @property
    def errors(self) -> list[Error]:
        return [Error(**entry) for shard in self._state["shards"].values() for entry in shard["errors"]]

    def begin(self, texts: Sequence[Sequence[int]]) -> None:
        """Make the folder, or find what an earlier run of the same job left."""
        state_file = self._out / STATE_FILE
        digest = hashlib.sha256()
        for path in (*self._checkpoint.weight_files, self._checkpoint.path / "config.json"):
            status = path.stat()
            digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
        job = {
            "source": digest.hexdigest(),
            "texts": hashlib.sha256(json.dumps([list(text) for text in texts]).encode()).hexdigest(),
            "recipe": asdict(self._recipe),
            "edgellm": importlib.metadata.version("edgellm"),
        }
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

    def calibrate(self, texts: Sequence[Sequence[int]], threads: int | None) -> None:
        """Find the scales of activations and caches, and with error feedback the matrices."""
        self._calibration = calibrate(
            self._checkpoint,
            texts,
            self._out / CALIBRATION,
            self._scales,
            list(self._groups),
            feedback=self._recipe.feedback,
            threads=threads,
            progress=self._progress,
        )

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
        shutil.rmtree(self._out / CALIBRATION, ignore_errors=True)
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
                "quant_algo": "NVFP4" if self._activations else "W4A16_NVFP4",
                "kv_cache_quant_algo": "FP8" if self._calibration else None,
                "group_size": BLOCK,
                "exclude_modules": spared,
            },
        }

    def _layout(self, file: TensorFile) -> _Layout:
        layout: _Layout = {}
        for name, entry in file.entries.items():
            module = name.removesuffix(".weight")
            if canonical(module) in self._groups:
                rows, columns = entry.shape
                layout[name] = (np.dtype(np.uint8), (rows, columns // 2))
                layout[f"{module}.weight_scale"] = (E4M3, (rows, columns // BLOCK))
                layout[f"{module}.weight_scale_2"] = (np.dtype(np.float32), ())
            else:
                layout[name] = (DTYPES[entry.dtype], entry.shape)
            layout |= {f"{module}.{leaf}": (np.dtype(np.float32), ()) for leaf in self._found(canonical(module))}
        return layout

    def _tensors(self, file: TensorFile, errors: list[Error]) -> Iterator[NDArray[Any]]:
        for name, entry in file.entries.items():
            module = canonical(name.removesuffix(".weight"))
            if module in self._groups:
                matrix, error = self._quantized(module)
                errors.append(error)
                yield from nvfp4_tensors(module, matrix).values()
            else:
                yield file.tensor(name)
            yield from (np.array(scale, np.float32) for scale in self._found(module).values())
            self._advance(entry.stop - entry.start)

    @property
    def _activations(self) -> bool:
        return self._calibration is not None and not self._recipe.weight_only

    def _found(self, module: str) -> dict[str, np.float32]:
        """What calibration adds to a module: tensor's last name → value."""
        scales: dict[str, np.float32] = {}
        if self._calibration is None:
            return scales
        if self._activations and module in self._groups:
            scales["input_scale"] = self._calibration.input_scale(module)
        for part in "kv":
            if module.endswith(f".self_attn.{part}_proj"):
                scales[f"{part}_scale"] = self._calibration.kv_scale(module.removesuffix("_proj"))
        return scales

    def _quantized(self, module: str) -> tuple[Nvfp4, Error]:
        weight = self._checkpoint.weight(f"{module}.weight")
        scale = self._scales.of(module)
        made = self._calibration.matrix(module) if self._calibration else None
        packed, block_scales = [], []
        squares = lost = 0.0
        for rows in row_pieces(weight.shape):
            values: F32 = weight.to_float32(rows)
            if made is None:
                piece = search_scales(values, global_scale=scale)
                packed.append(piece.packed)
                block_scales.append(piece.block_scales)
                kept = piece.to_float32()
            else:
                kept = made.to_float32(rows)
            squares += float(np.square(values, dtype=np.float64).sum())
            lost += float(np.square(values - kept, dtype=np.float64).sum())
        found = made or Nvfp4(np.concatenate(packed), np.concatenate(block_scales), scale)
        output = self._calibration.output_error(module) if self._calibration else None
        return found, Error(module, (lost / squares) ** 0.5 if squares else 0.0, output)

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
    form = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    group: dict[str, Any] = {"weights": form, "targets": ["Linear"]}
    if said["quant_algo"] == "NVFP4":
        group["input_activations"] = form
    kv = {"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}} if said["kv_cache_quant_algo"] else {}
    return {
        "quant_method": "modelopt",
        "quant_algo": said["quant_algo"],
        "config_groups": {"group_0": group},
        **kv,
        "ignore": said["exclude_modules"],
        "producer": claim["producer"],
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
