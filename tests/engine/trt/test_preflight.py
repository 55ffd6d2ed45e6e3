"""A build that cannot work is refused before anything is read or written, and says what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.builder import build_bundle, choose_recipe
from edgellm.engine.manifest import Device
from edgellm.engine.recipe import Recipe, TensorRtRecipe, load_recipe
from edgellm.engine.trt import api, engines, machine
from edgellm.engine.trt.machine import Gpu, l4t_release, misfit
from edgellm.engine.trt.memory_plan import BASE, COPIES, check_room, plan_build
from edgellm.errors import ConfigError

THOR = TensorRtRecipe("SM110")
DEVICE = Recipe(target="tensorrt", kv="bf16", prefill_chunk=64, context=256, tensorrt=THOR)


def module(version: str) -> Any:
    return SimpleNamespace(__name__="tensorrt", __version__=version)


@pytest.fixture
def thor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`thor(version)`: a machine with that TensorRT and a GPU of Thor."""

    def make(version: str) -> None:
        monkeypatch.delenv("__LUNOWUD", raising=False)
        monkeypatch.setattr(engines, "load_api", lambda target: module(version))
        monkeypatch.setattr(machine, "load_api", lambda target: module(version))
        for place in (engines, machine):
            monkeypatch.setattr(place, "find_gpu", lambda: Gpu("NVIDIA Thor", "SM110"))

    return make


def plan(checkpoint: Path, tmp_path: Path, recipe: Recipe = DEVICE) -> Any:
    return engines.plan_engines(Checkpoint.open(checkpoint), recipe, 256, tmp_path / "out")


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_module_is_named(
    nvfp4_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    for name in api.MODULES[target]:
        monkeypatch.setitem(sys.modules, name, None)
    recipe = Recipe(target=target, kv="bf16", prefill_chunk=64, context=256, tensorrt=TensorRtRecipe("SM120"))
    with pytest.raises(ConfigError, match=rf"target {target} is not installed here .*edgellm\[{target}\]"):
        build_bundle(nvfp4_checkpoint, tmp_path / "out", recipe)
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(api.importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"tensorrt does not load: libnvinfer\.so\.10"):
        api.load_api("tensorrt")


def test_importing_edgellm_imports_no_tensorrt() -> None:
    code = (
        "import sys, edgellm.engine.builder, edgellm.engine.trt.engines, edgellm.cli;"
        "print([name for name in sys.modules if name.startswith('tensorrt')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_release_that_miscompiles_is_refused(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None]
) -> None:
    thor("10.13.3.9")
    with pytest.raises(ConfigError, match=r"10\.13\.3\.9 computes wrong .*side_by_side_fusion = false"):
        plan(nvfp4_checkpoint, tmp_path)


def test_a_release_that_is_too_old_is_refused(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None]
) -> None:
    thor("10.9.0.34")
    with pytest.raises(ConfigError, match=r"tensorrt 10\.9\.0\.34 is too old: 10\.13 or newer"):
        plan(nvfp4_checkpoint, tmp_path)


def test_switches_of_the_recipe_or_of_the_user_let_it_build(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thor("10.13.3.9")
    monkeypatch.setenv("__LUNOWUD", "-other=1 -peep:fc_h_fusion=off")
    with pytest.raises(ConfigError, match="computes wrong"):
        plan(nvfp4_checkpoint, tmp_path)
    form = TensorRtRecipe("SM110", side_by_side_fusion=False)
    plan(nvfp4_checkpoint, tmp_path, Recipe(target="tensorrt", kv="bf16", prefill_chunk=64, tensorrt=form))
    assert api.os.environ["__LUNOWUD"] == "-other=1 -peep:fc_h_fusion=off -peep:match_dual_gemm=off"
    plan(nvfp4_checkpoint, tmp_path)  # now set, whoever set it


@pytest.mark.parametrize("version", ["10.14.1", "10.16.2.1", "11.0.0"])
def test_newer_releases_need_no_switches(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None], version: str
) -> None:
    thor(version)
    plan(nvfp4_checkpoint, tmp_path)
    assert "__LUNOWUD" not in api.os.environ


def test_the_device_must_be_there_and_the_one_that_is_meant(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thor("10.16.2")
    monkeypatch.setattr(engines, "find_gpu", lambda: Gpu("NVIDIA H200", "SM90"))
    with pytest.raises(ConfigError, match="compute_capability is SM110, the GPU here, NVIDIA H200, is SM90"):
        plan(nvfp4_checkpoint, tmp_path)
    monkeypatch.setattr(engines, "find_gpu", lambda: None)
    with pytest.raises(ConfigError, match="shows no NVIDIA GPU"):
        plan(nvfp4_checkpoint, tmp_path)


def test_memory_and_disk_are_counted_before_the_start(nvfp4_checkpoint: Path, tmp_path: Path) -> None:
    source = Checkpoint.open(nvfp4_checkpoint)
    needs = plan_build(source, 1024)
    quantized = {name for name in source.matrices if source.kind(name) == "nvfp4"}
    assert "layers.0.mlp.down_proj.weight" in quantized
    decoder = sum(
        rows * columns * (9 / 16 if name in quantized else 2)
        for name, (rows, columns) in ((n, s) for n, s in source.spec.expected_tensors().items() if len(s) == 2)
        if not name.startswith("mtp.")
    )
    assert needs.engines["verify"] == decoder + 1024 * 16 * 4  # cosines and sines of 8 angles, float32
    assert needs.memory == int(needs.engines["verify"] * COPIES) + BASE
    assert plan_build(source, 1024, ahead_of_time=True).memory < needs.memory
    split = plan_build(source, 1024, form="split")
    assert split.engines.keys() >= {"embed", "head", "mtp", "segment 0"}
    assert (sum(split.engines.values()), split.memory < needs.memory) == (split.disk // 2, True)  # graphs, engines
    check_room(needs, tmp_path, available=needs.memory, free=needs.disk)
    with pytest.raises(ConfigError, match=rf"needs {needs.memory} bytes of memory .*, {needs.memory - 1} bytes"):
        check_room(needs, tmp_path, available=needs.memory - 1, free=needs.disk)
    with pytest.raises(ConfigError, match=rf"needs {needs.disk} bytes of disk"):
        check_room(needs, tmp_path, available=needs.memory, free=needs.disk - 1)


def test_too_little_memory_stops_a_build_before_it_reads(
    nvfp4_checkpoint: Path, tmp_path: Path, thor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    thor("10.16.2")
    memory = SimpleNamespace(available=1 << 30, total=1 << 35)
    monkeypatch.setattr("edgellm.engine.trt.memory_plan.psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(Checkpoint, "content_hash", lambda *_: pytest.fail("the checkpoint was read"))
    with pytest.raises(ConfigError, match=r"needs \d+ bytes of memory"):
        build_bundle(nvfp4_checkpoint, tmp_path / "out", DEVICE)
    assert list(tmp_path.iterdir()) == []


STAMP = Device("10.16.2", "SM110", "NVIDIA Thor", "38.4.0", "13.0", "whole", "bf16", 1, {})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tensorrt": "10.13.3.9"}, "for TensorRT 10.13.3.9, here it is 10.16.2: rebuild"),
        ({"compute_capability": "SM87"}, "for compute capability SM87, here it is SM110: rebuild"),
        ({"l4t": "38.2.0"}, "for L4T 38.2.0, here it is 38.4.0: rebuild"),
        ({"cuda": "12.9"}, "for CUDA 12.9, here it is 13.0: rebuild"),
    ],
)
def test_a_stamp_of_another_machine_is_told(
    thor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, change: dict[str, str], named: str
) -> None:
    thor("10.16.2")
    monkeypatch.setattr(machine, "l4t_release", lambda: "38.4.0")
    monkeypatch.setattr(machine, "cuda_version", lambda: "13.0")
    assert misfit("tensorrt", STAMP) is None
    values = {name: getattr(STAMP, name) for name in STAMP.__slots__}
    assert named in str(misfit("tensorrt", Device(**{**values, **change})))
    monkeypatch.setattr(machine, "find_gpu", lambda: None)
    assert misfit("tensorrt", STAMP) == "this machine shows no NVIDIA GPU"


def test_l4t_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "nv_tegra_release"
    assert l4t_release(path) is None
    path.write_text("# R38 (release), REVISION: 2.1, GCID: 1, BOARD: generic, EABI: aarch64\n")
    assert l4t_release(path) == "38.2.1"
    path.write_text("something else")
    assert l4t_release(path) is None


def test_recipes_and_targets_are_chosen_together(nvfp4_checkpoint: Path) -> None:
    source = Checkpoint.open(nvfp4_checkpoint)
    assert choose_recipe(source, None, None)[0] == "cpu-nvfp4"
    assert choose_recipe(source, None, "ort-cpu")[0] == "cpu-nvfp4"
    for target in ("tensorrt", "tensorrt-rtx"):
        assert choose_recipe(source, None, target)[1].target == target
    name = "qwen3.6-27b-nvfp4-thor"
    assert choose_recipe(source, name, None) == (name, load_recipe(name))
    with pytest.raises(ConfigError, match=f"recipe {name} is for target tensorrt, not tensorrt-rtx"):
        choose_recipe(source, name, "tensorrt-rtx")
    with pytest.raises(ConfigError, match="target must be one of ort-cpu, tensorrt, tensorrt-rtx, got 'cuda'"):
        choose_recipe(source, None, "cuda")
