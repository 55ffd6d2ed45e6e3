"""The split form: engines are really built, and what is opened runs the rest of the path without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_driver import HostDriver, HostEngines
from kernel_parity import needs_compiler

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine import bundle as bundle_module
from edgellm.engine.base import Chunk
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.device import opening
from edgellm.engine.device.cuda import CudaDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.opening import open_device, plan_layout
from edgellm.engine.recipe import Recipe, TensorRtRecipe, load_recipe
from edgellm.engine.trt.engines import LAYERS_FILE, read_layers
from edgellm.engine.trt.split import KERNELS, kernel_binaries
from edgellm.errors import BundleError, ConfigError
from edgellm.graph.lowering.tensorrt import TensorRtForm, TensorRtOps
from edgellm.graph.segments import build_segments
from edgellm.kernels.spec import Kernel

pytest.importorskip("tensorrt_rtx_bindings", reason="needs the extra tensorrt-rtx")
pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra kernels")

RECIPE = Recipe(
    target="tensorrt-rtx",
    kv="fp8",
    block_tokens=32,
    prefill_chunk=64,
    context=256,
    tensorrt=TensorRtRecipe("SM120", form="split", profiles=(1, 16), splits=2),
)


@pytest.fixture(scope="module")
def built(nvfp4_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(nvfp4_checkpoint, tmp_path_factory.mktemp("split") / "tiny", RECIPE)


@pytest.fixture
def bundle(built: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Opened as on the GPU that it was built for."""
    monkeypatch.setattr(bundle_module, "misfit", lambda target, device: None)
    return Bundle.open(built)


def test_every_segment_has_native_products_in_every_profile(built: Path, bundle: Bundle) -> None:
    layers = read_layers(built / LAYERS_FILE)
    spec = bundle.manifest.spec
    last = f"segment_{len(spec.layers):02d}"
    assert set(layers) == {
        "embed",
        *(f"segment_{i:02d}" for i in range(len(spec.layers) + 1)),
        "head",
        "mtp_in",
        "mtp_out",
    }
    # Of a layer: out of its mixer, gate and up, down, and into the next one.
    some = {"embed": 0, "segment_00": 1, last: 3, "head": 1, "mtp_in": 2, "mtp_out": 3}
    for name, found in layers.items():
        products = some.get(name, 4)
        profiles = 2 if name == "mtp_out" else 3
        for profile in range(profiles):
            assert found.of_profile(profile).counts()["fp4_products"] == products, (name, profile)


def test_kernels_are_compiled_for_the_recipe(built: Path, bundle: Bundle) -> None:
    assert bundle.manifest.device is not None
    files = {path.name for path in (built / KERNELS).iterdir()}
    assert files == set(bundle.manifest.device.kernels)
    names = {name.rsplit("-", 1)[0] for name in files}
    assert names >= {"gdn_prep", "gdn_tree_verify", "gdn_commit", "gdn_prefill", "attn_prefill", "kv_copy_page"}


@needs_compiler
def test_what_is_opened_answers(built: Path, bundle: Bundle, nvfp4_checkpoint: Path, tmp_path: Path) -> None:
    """The bundle's kernels' weights, layout and memory plan, with segments of the same lowering in place of engines."""
    source = Checkpoint.open(nvfp4_checkpoint)
    build_segments(TensorRtOps(source, TensorRtForm("f32", "decoded")), tmp_path, np.float32)
    driver = HostDriver(capacity=8 << 30)

    def make(bundle: Bundle) -> CudaDevice:
        return CudaDevice(lambda _: HostEngines(tmp_path, driver), driver.binary, driver=driver)

    assert bundle.manifest.device is not None
    wide: Any = replace(bundle.manifest.device, activations="f32")
    object.__setattr__(bundle, "manifest", replace(bundle.manifest, device=wide))
    executor = open_device(bundle, slots=2, context=256, speculation=True, cache_bytes=1 << 20, make=make)
    assert executor.info.max_blocks == (1 << 20) // executor.info.block_bytes
    rows = executor.advance([Chunk(0, list(range(40)), True)])
    assert np.isfinite(rows.row(0)).all()
    executor.close()


@needs_compiler
def test_it_opens_without_speculation_and_cache(built: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """And needs no kernel that the bundle lacks."""
    driver, find = HostDriver(capacity=8 << 30), kernel_binaries(built, "sm_120a")
    wanted: list[str] = []
    monkeypatch.setattr("edgellm.kernels.nvrtc.compile_kernel", None)

    def binary(kernel: Kernel, sizes: Any) -> bytes:
        wanted.append(kernel.name)
        find(kernel, sizes)
        return driver.binary(kernel, sizes)

    def make(bundle: Bundle) -> CudaDevice:
        return CudaDevice(lambda _: _Nothing(), binary, driver=driver)

    for speculation in (False, True):
        executor = open_device(
            bundle, slots=1, context=256, speculation=speculation, cache_bytes=0, snapshot_bytes=0, make=make
        )
        assert (executor.info.max_blocks, executor.info.max_snapshots) == (0, 0)
        assert (executor.info.draft_top_k > 0) is speculation
        executor.close()
    assert {"gdn_prefill", "kv_commit", "draft_topk"} <= set(wanted)


class _Nothing:
    used = 0

    def prepare(self, name: str, tensors: Any, stream: int) -> Any:
        return lambda: None

    def close(self) -> None:
        pass


def test_memory_is_planned_before_anything_is_taken(bundle: Bundle) -> None:
    layout = plan_layout(bundle, 2, 256, speculation=True, cache_bytes=None, snapshot_bytes=None, free=8 << 30)
    assert (layout.max_pages, layout.pages) == (8, 2 * 8 + 4 * 8)
    with pytest.raises(ConfigError, match=r"cache_bytes and snapshot_bytes: .* beside 2 slots of 256 tokens"):
        plan_layout(bundle, 2, 256, speculation=True, cache_bytes=99999999999, snapshot_bytes=None, free=8 << 30)
    with pytest.raises(ConfigError, match=r"slots of 256 tokens need .* ask for"):
        plan_layout(bundle, 2, 256, speculation=True, cache_bytes=None, snapshot_bytes=None, free=2 << 30)


def test_flags_of_the_pools(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    def plan(cache: int | None, snapshots: int | None, free: int = 8 << 30) -> Layout:
        return plan_layout(bundle, 2, 256, speculation=True, cache_bytes=cache, snapshot_bytes=snapshots, free=free)

    assert (plan(0, 1 << 40).pages, plan(0, 1 << 40).snapshots) == (16, 0), "off, whatever the other flag says"
    with pytest.raises(ConfigError, match="cache_bytes: -1 is negative"):
        plan(-1, None)
    assert plan(1 << 22, None).snapshots > 2
    assert not caplog.text
    page = plan(1 << 22, None).pages
    least = next(free for free in range(4 << 30, 8 << 30, 1 << 20) if _fits(lambda free=free: plan(None, None, free)))
    small = plan(None, None, least)
    assert "long prompts will not be cached" in caplog.text
    assert small.pages < page
    assert small.snapshots or small.pages == 16, "pages that nothing could be restored from are not taken"


def _fits(plan: Callable[[], Layout]) -> bool:
    try:
        plan()
    except ConfigError:
        return False
    return True


def test_other_slots_and_pages_need_no_compiler(built: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = plan_layout(bundle, 3, 256, speculation=True, cache_bytes=1 << 22, snapshot_bytes=None, free=8 << 30)
    device = opening.SymbolicDevice()
    opening.exercise(opening._executor(device, bundle, layout))
    monkeypatch.setattr("edgellm.kernels.nvrtc.compile_kernel", None)
    find = kernel_binaries(built, "sm_120a")
    assert all(find(kernel, sizes) for kernel, sizes in device.launches())


def test_a_context_that_was_not_built_is_compiled_or_refused(
    built: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = plan_layout(bundle, 1, 96, speculation=True, cache_bytes=None, snapshot_bytes=None, free=8 << 30)
    device = opening.SymbolicDevice()
    opening.exercise(opening._executor(device, bundle, layout))
    find = kernel_binaries(built, "sm_120a")
    assert all(find(kernel, sizes) for kernel, sizes in device.launches())

    def missing(*args: Any) -> Any:
        raise ConfigError("no NVRTC")

    monkeypatch.setattr("edgellm.kernels.nvrtc.compile_kernel", missing)
    longer = next(launch for launch in device.launches() if launch[0].name == "tree_build")
    with pytest.raises(ConfigError, match=r"has no tree_build for these slots and this context.*no NVRTC"):
        find(*longer)


def test_settings_out_of_range(bundle: Bundle) -> None:
    for settings, named in [
        ({"slots": 0, "context": 64}, "slots must be at least 1"),
        ({"slots": 1, "context": 257}, "context 257 is outside 1 to 256"),
    ]:
        with pytest.raises(ConfigError, match=named):
            open_device(bundle, speculation=True, **settings)
    assert bundle.manifest.device is not None
    whole = replace(bundle.manifest, device=replace(bundle.manifest.device, form="whole"))
    object.__setattr__(bundle, "manifest", whole)
    with pytest.raises(BundleError, match="no executor runs"):
        open_device(bundle, slots=1, context=64, speculation=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv": "bf16"}, "kv must be fp8 in the form split"),
        ({"block_tokens": 16}, "block_tokens must be a multiple of 32"),
        ({"tensorrt": replace(RECIPE.tensorrt, form="plugins")}, "plugins needs target tensorrt"),
        ({"tree_nodes": 8}, r"tensorrt.profiles must be \[1, 8\]"),
    ],
)
def test_recipes_that_cannot_be_built(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(RECIPE, **change)


def test_the_shipped_recipe_for_thor_is_in_this_form() -> None:
    recipe = load_recipe("qwen3.6-27b-nvfp4-thor")
    assert recipe.tensorrt is not None
    assert (recipe.tensorrt.form, recipe.kv) == ("split", "fp8")
