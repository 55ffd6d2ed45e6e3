"""A device without memory says what a model will need; what it says of the 27 B shape is what is checked."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Copy
from edgellm.engine.device.exercise import exercise
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.symbolic import SymbolicDevice, buffer_bytes
from edgellm.engine.recipe import load_recipe
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.graph.segments import KERNEL_WEIGHTS
from edgellm.kernels.catalog import DEVICE_PROFILES
from edgellm.kernels.source import digest

SPEC = ModelSpec.from_config(PRESETS["qwen36-27b"].config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels' weights of the 27 B shape, all zero."""
    made = tmp_path_factory.mktemp("27b")
    a, d, positions = SPEC.attention, SPEC.linear, 131072
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("cos", "sin"), (positions, a.rotary_dim // 2))
    for layer in SPEC.linear_layers:
        shapes |= {f"taps.{layer}": (d.conv_kernel, d.conv_channels)}
        shapes |= {f"{name}.{layer}": (d.value_heads,) for name in ("decay", "dt_bias")}
    for key in (*map(str, SPEC.full_layers), "mtp"):
        shapes |= {f"q_norm.{key}": (a.head_dim,), f"k_norm.{key}": (a.head_dim,), f"kv_scale.{key}": (2,)}
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, made / KERNEL_WEIGHTS)
    return made


def test_what_the_27b_recipe_launches_is_what_is_compiled_and_checked(folder: Path) -> None:
    recipe = load_recipe("qwen3.6-27b-nvfp4-thor")
    assert recipe.tensorrt is not None
    assert recipe.context == 131072
    layout = Layout(
        io=recipe.tensorrt.activations,
        slots=1,
        page=recipe.block_tokens,
        pages=2 * 2048,
        max_pages=2048,
        snapshots=1,
        nodes=recipe.tree_nodes,
        chunk=recipe.prefill_chunk,
        mtp=True,
    )
    device = SymbolicDevice()
    executor = DeviceExecutor(device, folder, SPEC, layout, splits=recipe.tensorrt.splits, fingerprint="")
    exercise(executor)
    checked = {digest(profile.kernel, profile.sizes) for profile in DEVICE_PROFILES}
    launched = list(device.launches())
    assert [kernel.name for kernel, sizes in launched if digest(kernel, sizes) not in checked] == []
    assert len({kernel.name for kernel, _ in launched}) == 15  # all but tree_accept: acceptance is the host's
    # KV of two contexts 9.1 GB, state and capsules of one slot, a snapshot, work buffers.
    assert 9.3e9 < device.used < 11e9


def test_buffers_do_not_overlap() -> None:
    device = SymbolicDevice()
    spans = sorted(buffer_bytes(device.zeros(shape, np.float32)) for shape in ((3,), (0,), (2, 5), ()))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert len({start for start, _ in spans}) == 4


def test_programs_are_kept_and_not_run() -> None:
    device = SymbolicDevice()
    first, second = device.zeros((2,), np.int32), device.zeros((2,), np.int32)
    device.program([Copy(first, second)])()
    assert device.programs == [(Copy(first, second),)]
    assert not device.download(second).any()
    with pytest.raises(ValueError, match="upload of float64"):
        device.upload(first, np.zeros(2))
    with pytest.raises(ValueError, match="copy of 8 bytes into 4"):
        device.copy(first, second[:1])
