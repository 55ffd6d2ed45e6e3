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
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.module_patterns import canonical
from edgellm.checkpoint.nvfp4 import BLOCK, E4M3, Nvfp4
from edgellm.checkpoint.reader import INDEX_FILE, QUANT_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import DTYPES, TensorFile, write_safetensors
from edgellm.checkpoint.tokenizer_files import read_json
from edgellm.errors import ConfigError
from edgellm.progress import Progress
from edgellm.quantize.calibrate import calibrate
from edgellm.quantize.calibration import Calibration, nvfp4_tensors
from edgellm.quantize.claim import Claim
from edgellm.quantize.folder import copy_other_files, refuse_quantized, spared_modules, write_index, write_json
from edgellm.quantize.global_scales import GlobalScales
from edgellm.quantize.loss import Error, relative_error
from edgellm.quantize.plan import Recipe, chosen_modules
from edgellm.quantize.rounding import row_pieces
from edgellm.quantize.search import search_scales
from edgellm.quantize.texts import check_tokens

STATE_FILE: Final = "quantize-state.json"
_PART: Final = f"{STATE_FILE}.part"
CALIBRATION: Final = "calibration"  # folder
REPORT_FILE: Final = "quantize-report.json"
_Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


def quantize_checkpoint(
    source: str | Path | Checkpoint,
    out: str | Path,
    recipe: Recipe,
    *,
    texts: Sequence[Sequence[int]] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Error]:
    """Write the checkpoint `source` to the folder `out` with its matrices in NVFP4; what each of them lost.

    Args:
        source: its folder, or the opened one.
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
    checkpoint = source if isinstance(source, Checkpoint) else Checkpoint.open(source)
    refuse_quantized(checkpoint)
    check_tokens(texts, checkpoint.spec.vocab)
    groups = chosen_modules(recipe, checkpoint.spec.expected_tensors())
    job = _Job(checkpoint, Path(out), groups, recipe, progress)
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
        elif self._out.exists() and any(path.name != _PART for path in self._out.iterdir()):
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
        if path.name not in self._state["shards"] or not (self._out / path.name).is_file():
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
        """Everything beside the weights; ``config.json``, without which nothing opens, last. Then see that it opens."""
        copy_other_files(self._checkpoint, self._out)
        shards = self._state["shards"]
        if (self._checkpoint.path / INDEX_FILE).is_file():
            write_index(self._out, {shard: made["names"] for shard, made in shards.items()})
        write_json(self._out / REPORT_FILE, [asdict(error) for error in self.errors])
        claim = Claim(
            activations=self._activations,
            kv=self._calibration is not None,
            spared=spared_modules(self._checkpoint, self._groups),
        )
        write_json(self._out / QUANT_FILE, claim.hf_quant_config())
        config = {**self._checkpoint.config, "quantization_config": claim.quantization_config()}
        write_json(self._out / "config.json", config)
        Checkpoint.open(self._out)
        shutil.rmtree(self._out / CALIBRATION, ignore_errors=True)
        (self._out / STATE_FILE).unlink()
        self._advance(self._total)  # headers are not counted on the way

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
        cache = module.removesuffix("_proj")
        if (scale := self._calibration.kv_scale(cache)) is not None:
            scales[f"{cache[-1]}_scale"] = scale
        return scales

    def _quantized(self, module: str) -> tuple[Nvfp4, Error]:
        weight = self._checkpoint.weight(f"{module}.weight")
        matrix = self._calibration.matrix(module) if self._calibration else None
        if matrix is None:
            scale = self._scales.of(module)
            pieces = [search_scales(weight.to_float32(rows), global_scale=scale) for rows in row_pieces(weight.shape)]
            matrix = Nvfp4(
                np.concatenate([piece.packed for piece in pieces]),
                np.concatenate([piece.block_scales for piece in pieces]),
                scale,
            )
        output = self._calibration.output_error(module) if self._calibration else None
        return matrix, Error(module, relative_error(weight, matrix), output)

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress("quantize", min(self._done, self._total), self._total)

    def _save(self) -> None:
        part = self._out / _PART
        write_json(part, self._state)
        part.rename(self._out / STATE_FILE)
