"""Quantized checkpoints: what is written, what is left alone, and runs that were stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.safetensors_file import TensorFile, write_safetensors
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import CheckpointError, ConfigError
from edgellm.quantize import writer
from edgellm.quantize.plan import Recipe, chosen_modules, named_recipe, unfit_modules
from edgellm.quantize.rounding import round_to_nearest
from edgellm.quantize.writer import quantize_checkpoint

ALL = named_recipe("nvfp4-all")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Multimodal names, with a tensor of the vision tower and a file of its processor."""
    folder = make_checkpoint("tiny", tmp_path_factory.mktemp("source") / "plain")
    path = folder / "model.safetensors"
    file = TensorFile.open(path)
    tensors = {name: np.array(file.tensor(name)) for name in file.entries}
    tensors["model.visual.proj.weight"] = np.arange(64, dtype=np.float32).reshape(4, 16)
    write_safetensors(path, {name: (array.dtype, array.shape) for name, array in tensors.items()}, tensors.values())
    (folder / "preprocessor_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("tiny", tmp_path_factory.mktemp("source") / "sharded", shards=4)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-head", "nvfp4-all"])
def test_what_is_written(source: Path, tmp_path: Path, name: str) -> None:
    errors = {
        error.module: error.relative for error in quantize_checkpoint(source, tmp_path / "out", named_recipe(name))
    }
    before, after = Checkpoint.open(source), Checkpoint.open(tmp_path / "out")
    assert after.warnings == ()
    assert ("lm_head" in errors) == (name != "nvfp4")
    assert any(module.startswith("mtp.") for module in errors) == (name == "nvfp4-all")
    for tensor, shape in before.spec.expected_tensors().items():
        module = tensor.removesuffix(".weight")
        if module not in errors:
            np.testing.assert_array_equal(after.tensor(tensor), before.tensor(tensor))
            assert len(shape) != 2 or module.startswith(("embed", "lm_head", "mtp.")) or "in_proj_" in module
            continue
        weight = after.weight(tensor)
        assert isinstance(weight, Nvfp4Weight)
        assert weight.input_scale is None
        plain = before.weight(tensor).to_float32()
        lost = np.linalg.norm(weight.to_float32() - plain) / np.linalg.norm(plain)
        assert errors[module] == pytest.approx(lost, rel=1e-4)
        assert lost < np.linalg.norm(round_to_nearest(plain).to_float32() - plain) / np.linalg.norm(plain)
    vision = TensorFile.open(tmp_path / "out" / "model.safetensors").tensor("model.visual.proj.weight")
    np.testing.assert_array_equal(vision, np.arange(64).reshape(4, 16))
    assert (tmp_path / "out" / "preprocessor_config.json").read_text() == "{}"
    assert not (tmp_path / "out" / writer.STATE_FILE).exists()
    report = json.loads((tmp_path / "out" / writer.REPORT_FILE).read_text())
    assert {entry["module"]: entry["relative"] for entry in report} == errors


def test_parts_that_are_fused_share_a_global_scale(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "out", ALL)
    checkpoint = Checkpoint.open(tmp_path / "out")

    def scale(module: str) -> Any:
        weight = checkpoint.weight(f"{module}.weight")
        assert isinstance(weight, Nvfp4Weight)
        return weight.matrix.global_scale

    for stem, parts in (
        ("layers.0.linear_attn", ("in_proj_qkv", "in_proj_z")),
        ("layers.3.self_attn", ("q_proj", "k_proj", "v_proj")),
        ("mtp.layers.0.mlp", ("gate_proj", "up_proj")),
    ):
        assert len({scale(f"{stem}.{part}") for part in parts}) == 1
    assert scale("layers.0.mlp.down_proj") != scale("layers.0.mlp.up_proj")


def test_shards_and_a_run_that_was_stopped(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    quantize_checkpoint(sharded, tmp_path / "whole", ALL, progress=lambda _, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    whole = files(tmp_path / "whole")
    assert Checkpoint.open(tmp_path / "whole").warnings == ()

    search, calls = writer.search_scales, [0]

    def stopping(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20:
            raise KeyboardInterrupt
        return search(*args, **options)

    monkeypatch.setattr(writer, "search_scales", stopping)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(sharded, tmp_path / "stopped", ALL)
    with pytest.raises(CheckpointError):
        Checkpoint.open(tmp_path / "stopped")
    with pytest.raises(ConfigError, match="holds part of another job"):
        quantize_checkpoint(sharded, tmp_path / "stopped", Recipe())
    quantize_checkpoint(sharded, tmp_path / "stopped", ALL)
    assert files(tmp_path / "stopped") == whole
    matrices = len(json.loads(whole[writer.REPORT_FILE]))
    assert calls[0] < 20 + matrices, "whole shards are not made again"


def test_a_run_that_left_next_to_nothing_or_lost_a_file(sharded: Path, tmp_path: Path) -> None:
    """Stopped in its first write; and a whole shard removed, or cut, before the run goes on."""
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{writer.STATE_FILE}.part").write_text("{")
    quantize_checkpoint(sharded, out, ALL)
    whole = files(out)

    def stop(phase: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    again = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(sharded, again, ALL, progress=stop)
    first = min(again.glob("*.safetensors"))
    first.unlink()
    quantize_checkpoint(sharded, again, ALL)
    assert files(again) == whole
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(sharded, cut, ALL, progress=stop)
    with min(cut.glob("*.safetensors")).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match="is truncated"):
        quantize_checkpoint(sharded, cut, ALL)


def test_what_cannot_be_done_is_named(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "out", Recipe())
    with pytest.raises(ConfigError, match=r"is quantized already: layers\.0"):
        quantize_checkpoint(tmp_path / "out", tmp_path / "again", Recipe())
    with pytest.raises(ConfigError, match="is not empty"):
        quantize_checkpoint(source, tmp_path / "out", Recipe())
    with pytest.raises(ConfigError, match="recipe: must be one of nvfp4"):
        named_recipe("int4")


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (Recipe(only=("layers.9*",)), "'layers.9\\*' means none of the modules"),
        (Recipe(spare=("lm_head",)), "'lm_head' means none"),
        (Recipe(only=("*.up_proj",)), "layers.0.mlp.up_proj is chosen but layers.0.mlp.gate_proj is not"),
        (Recipe(only=("*.mlp.*",), spare=("re:.*mlp",)), "no module is left"),
    ],
)
def test_choices_that_cannot_be(source: Path, recipe: Recipe, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        chosen_modules(recipe, Checkpoint.open(source).spec.expected_tensors())


@pytest.mark.parametrize(
    ("recipe", "count"), [(Recipe(only=("layers.1.*",)), 6), (Recipe(spare=("layers.3.self_attn",)), 21), (ALL, 34)]
)
def test_choices(source: Path, recipe: Recipe, count: int) -> None:
    assert len(chosen_modules(recipe, Checkpoint.open(source).spec.expected_tensors())) == count


def test_a_damaged_matrix_is_named(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    file = TensorFile.open(copy / "model.safetensors")
    tensors = {name: np.array(file.tensor(name)) for name in file.entries}
    tensors["model.language_model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
    write_safetensors(copy / "model.safetensors", layout, tensors.values())
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight cannot be quantized: the matrix holds NaN"):
        quantize_checkpoint(copy, tmp_path / "out", Recipe())


def test_matrices_of_other_widths_are_named(tmp_path: Path) -> None:
    shapes = Checkpoint.open(make_checkpoint("parity-odd", tmp_path / "odd")).spec.expected_tensors()
    assert unfit_modules(Recipe(), shapes) == [f"layers.{layer}.mlp.down_proj" for layer in range(5)]
    assert unfit_modules(ALL, shapes)[-1] == "mtp.layers.0.mlp.down_proj"


def test_a_tied_head_is_excluded(tmp_path: Path) -> None:
    tied = make_checkpoint("parity-equal", tmp_path / "tied")
    quantize_checkpoint(tied, tmp_path / "out", Recipe())
    claim = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert "lm_head" in claim["quantization"]["exclude_modules"]
    assert Checkpoint.open(tmp_path / "out").warnings == ()
