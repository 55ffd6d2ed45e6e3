"""Calibration: layer by layer the model's own arithmetic, and the scales and errors that come of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import F32
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import INDEX_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import TensorFile, write_safetensors
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import ConfigError
from edgellm.graph.reference import ReferenceModel
from edgellm.quantize import calibrate as calibrating
from edgellm.quantize.calibration import nvfp4_tensors
from edgellm.quantize.layer_graph import LayerGraph
from edgellm.quantize.loss import Error, weight_errors
from edgellm.quantize.plan import Recipe, named_recipe
from edgellm.quantize.writer import CALIBRATION, REPORT_FILE, quantize_checkpoint

ALL = named_recipe("nvfp4-all")
FEEDBACK = Recipe(lm_head=True, mtp=True, feedback=True)
TEXTS = [[5, 9, 400, 400, 400, 7], [1, 2], [int(token) for token in np.random.default_rng(3).integers(0, 500, 40)]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("tiny", tmp_path_factory.mktemp("source") / "tiny", shards=3)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def quantized(checkpoint: Checkpoint, module: str) -> Nvfp4Weight:
    weight = checkpoint.weight(f"{module}.weight")
    assert isinstance(weight, Nvfp4Weight)
    return weight


@pytest.mark.parametrize("preset", ["parity-equal", "parity-grouped", "parity-odd"])
def test_layers_one_by_one_are_the_model(preset: str, tmp_path: Path) -> None:
    source = Checkpoint.open(make_checkpoint(preset, tmp_path / "source"))
    ids = np.array(TEXTS[0], np.int64)
    rows: F32 = np.asarray(source.tensor("embed_tokens.weight"), np.float32)[ids]
    for layer in range(len(source.spec.layers)):
        folder = tmp_path / str(layer)
        folder.mkdir()
        rows = LayerGraph(source, layer, folder, positions=len(ids), threads=1).run(rows, ids).out
    hidden = ReferenceModel(source).run(ids)[1]
    scale = 1 + np.asarray(source.tensor("norm.weight"), np.float32)
    normed = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + source.spec.rms_eps) * scale
    np.testing.assert_allclose(normed, hidden, atol=1e-4)


class Watched(ReferenceModel):
    """The NumPy model; notes the largest value that each matrix is multiplied with."""

    def __init__(self, source: Checkpoint) -> None:
        super().__init__(source)
        self.seen: dict[str, float] = {}

    def _tensor(self, name: str) -> Any:
        return (
            _Matrix(super()._tensor(name), name.removesuffix(".weight"), self.seen)
            if "proj" in name
            else (super()._tensor(name))
        )


class _Matrix:
    def __init__(self, values: NDArray[np.float64], module: str, seen: dict[str, float]) -> None:
        self.values, self.module, self.seen = values, module, seen

    def __matmul__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        self.seen[self.module] = max(self.seen.get(self.module, 0.0), float(np.abs(x).max()))
        return self.values @ x


def test_scales_are_those_of_the_model(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "out", ALL, texts=TEXTS)
    before, after = Checkpoint.open(source), Checkpoint.open(tmp_path / "out")
    assert after.warnings == ()
    claim = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert (claim["quant_algo"], claim["kv_cache_quant_algo"]) == ("NVFP4", "FP8")
    seen: dict[str, float] = {}
    caches: dict[str, list[float]] = {}
    for text in TEXTS:
        model = Watched(before)
        hidden = model.run(text)[1]
        for place in range(1, len(text)):
            model.draft(hidden[place - 1], text[place], place - 1)
        for module, amax in model.seen.items():
            seen[module] = max(seen.get(module, 0.0), amax)
        states = {f"layers.{layer}.self_attn": model._states[layer] for layer in before.spec.full_layers}
        for name, state in {**states, "mtp.layers.0.self_attn": model._mtp}.items():
            largest = [float(np.abs(rows).max()) for rows in (state.keys, state.values)]
            caches[name] = [max(pair) for pair in zip(largest, caches.get(name, [0, 0]), strict=True)]
    assert len(seen) > 30
    for module, amax in seen.items():
        if not module.endswith(("in_proj_a", "in_proj_b")):
            assert quantized(after, module).input_scale == pytest.approx(amax / 2688, rel=1e-4), module
    for name, pair in caches.items():
        assert after.kv_scales[name] == pytest.approx([amax / 448 for amax in pair], rel=1e-4)
    assert quantized(after, "lm_head").input_scale is not None


def test_weight_only_keeps_the_caches_scales(source: Path, tmp_path: Path) -> None:
    recipe = Recipe(only=("layers.3.*",), weight_only=True)
    quantize_checkpoint(source, tmp_path / "out", recipe, texts=TEXTS)
    after = Checkpoint.open(tmp_path / "out")
    assert after.warnings == ()
    assert quantized(after, "layers.3.mlp.up_proj").input_scale is None
    assert set(after.kv_scales) == {"layers.3.self_attn", "mtp.layers.0.self_attn"}


def test_error_feedback_loses_less_of_the_outputs(source: Path, tmp_path: Path) -> None:
    errors = {error.module: error for error in quantize_checkpoint(source, tmp_path / "out", FEEDBACK, texts=TEXTS)}
    after = Checkpoint.open(tmp_path / "out")
    assert after.warnings == ()
    found = {error.module: error.relative for error in weight_errors(Checkpoint.open(source), after)}
    assert found == {module: error.relative for module, error in errors.items()}
    lost, total = [], []
    for module, error in errors.items():
        plain = Checkpoint.open(source).weight(f"{module}.weight").to_float32()
        weight = quantized(after, module).to_float32()
        assert error.relative == pytest.approx(np.linalg.norm(weight - plain) / np.linalg.norm(plain), rel=1e-4)
        assert error.output is not None
        lost.append(error.output)
        total.append(error.relative)
    assert np.mean(lost) < 0.8 * np.mean(total)
    report = json.loads((tmp_path / "out" / REPORT_FILE).read_text())
    assert [Error(**entry) for entry in report] == list(errors.values())
    scales = {part: quantized(after, f"layers.3.self_attn.{part}_proj").matrix.global_scale for part in "qkv"}
    assert len(set(scales.values())) == 1


@pytest.mark.parametrize("recipe", [ALL, FEEDBACK])
def test_a_calibration_that_was_stopped(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    seen: list[tuple[str, int, int]] = []
    quantize_checkpoint(source, tmp_path / "whole", recipe, texts=TEXTS, progress=lambda *step: seen.append(step))
    assert [step[1] for step in seen if step[0] == "calibrate"] == [0, 1, 2, 3, 4, 5]
    whole = files(tmp_path / "whole")
    assert CALIBRATION not in whole
    made: list[int | None] = []

    class Stopping(LayerGraph):
        def __init__(self, source: Any, layer: int | None, folder: Path, **sizes: int) -> None:
            made.append(layer)
            if made == [0, 1, 2] or made == [0, 0, 1, 1, 2]:
                raise KeyboardInterrupt
            super().__init__(source, layer, folder, **sizes)

    monkeypatch.setattr(calibrating, "LayerGraph", Stopping)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, tmp_path / "stopped", recipe, texts=TEXTS)
    with pytest.raises(ConfigError, match="holds part of another job"):
        quantize_checkpoint(source, tmp_path / "stopped", recipe, texts=TEXTS[:2])
    before = len(made)
    quantize_checkpoint(source, tmp_path / "stopped", recipe, texts=TEXTS)
    assert made[before] == 2, "whole layers are not run again"
    assert files(tmp_path / "stopped") == whole


def changed(source: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint with each file's tensors changed."""
    shutil.copytree(source, copy)
    for path in copy.glob("*.safetensors"):
        file = TensorFile.open(path)
        tensors = {name: np.array(file.tensor(name)) for name in file.entries}
        change(tensors)
        layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
        write_safetensors(path, layout, tensors.values())
    return copy


def test_a_matrix_that_nothing_goes_into(source: Path, tmp_path: Path) -> None:
    def silence(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.endswith("layers.1.mlp.up_proj.weight"):
                tensors[name][:] = 0

    dead = changed(source, tmp_path / "dead", silence)
    errors = quantize_checkpoint(dead, tmp_path / "out", FEEDBACK, texts=TEXTS)
    assert next(error.output for error in errors if error.module == "layers.1.mlp.down_proj") == 0
    scale = quantized(Checkpoint.open(tmp_path / "out"), "layers.1.mlp.down_proj").input_scale
    assert scale == np.float32(6) / np.float32(2688)


def test_attention_of_other_models_is_copied(source: Path, tmp_path: Path) -> None:
    """A vision tower's, and that of an MTP layer which the config turns off."""

    def add(tensors: dict[str, Any]) -> None:
        if any(name.startswith("lm_head") for name in tensors):
            tensors["model.visual.blocks.0.self_attn.k_proj.weight"] = np.ones((16, 16), np.float32)

    copy = changed(source, tmp_path / "copy", add)
    index = json.loads((copy / INDEX_FILE).read_text())
    index["weight_map"]["model.visual.blocks.0.self_attn.k_proj.weight"] = index["weight_map"]["lm_head.weight"]
    (copy / INDEX_FILE).write_text(json.dumps(index))
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 0
    (copy / "config.json").write_text(json.dumps(config))
    quantize_checkpoint(copy, tmp_path / "out", ALL, texts=TEXTS)
    names = {name for path in (tmp_path / "out").glob("*.safetensors") for name in TensorFile.open(path).entries}
    assert "model.visual.blocks.0.self_attn.k_proj.weight" in names
    assert "mtp.layers.0.self_attn.k_proj.weight" in names
    assert not [name for name in names if name.endswith("k_scale") and ("visual" in name or "mtp" in name)]


def test_what_cannot_be_calibrated_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="error feedback needs texts"):
        quantize_checkpoint(source, tmp_path / "out", FEEDBACK)
    for texts, named in (([[5]], "fewer than two tokens"), ([[1, 2], [3, 1024]], "text 2 .* outside the vocabulary")):
        with pytest.raises(ConfigError, match=named):
            quantize_checkpoint(source, tmp_path / "out", ALL, texts=texts)

    def inflate(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if name.endswith("layers.1.mlp.down_proj.weight"):
                tensors[name][:] = 1e38

    copy = changed(source, tmp_path / "copy", inflate)
    with pytest.raises(ConfigError, match=r"layers\.2\.\S+ cannot be calibrated: what goes into it is not finite"):
        quantize_checkpoint(copy, tmp_path / "out", ALL, texts=TEXTS)


def test_what_is_read_is_written_again_byte_for_byte(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "out", FEEDBACK, texts=TEXTS)
    checkpoint = Checkpoint.open(tmp_path / "out")
    for path in checkpoint.weight_files:
        file = TensorFile.open(path)
        tensors: dict[str, NDArray[Any]] = {}
        for name in file.entries:
            module = name.removesuffix(".weight")
            if name.endswith(".weight") and f"{module}.weight_scale" in file.entries:
                weight = quantized(checkpoint, module.removeprefix("model.language_model."))
                tensors |= nvfp4_tensors(module, weight.matrix)
                tensors[f"{module}.input_scale"] = np.array(weight.input_scale, np.float32)
            elif name not in tensors:
                tensors[name] = file.tensor(name)
        layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
        write_safetensors(tmp_path / path.name, layout, tensors.values())
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
