"""Plugins as NVIDIA's own Python sees them: registration, shapes, types, aliases, launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_tensorrt
import pytest
from fake_tensorrt import DataType, Tensor, build

from edgellm.errors import ConfigError
from edgellm.kernels.catalog import DEVICE_PROFILES, KERNELS, Profile
from edgellm.kernels.plugins import plugin_name, register

TYPES = {"io": DataType.BF16, "f32": DataType.FLOAT, "i32": DataType.INT32, "e4m3": DataType.FP8}
PTX = b"// PTX of this kernel\n"
PLUGINS = list(dict.fromkeys(profile for profile in DEVICE_PROFILES if profile.kernel.plugin))
FIRST = next(profile for profile in PLUGINS if profile.kernel.name == "attn_prep")
WHEELS = fake_tensorrt.wheels()
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")


@pytest.fixture(scope="module", params=WHEELS or [None], ids=lambda path: path.name.split("-")[1] if path else "none")
def tensorrt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    wheel: Path | None = request.param
    if wheel is None:
        pytest.skip(f"no TensorRT bindings in {fake_tensorrt.FOLDER}; `make test` downloads them")
    with fake_tensorrt.loaded(wheel, tmp_path_factory.mktemp("tensorrt")) as module:
        yield module


def inputs_of(profile: Profile) -> list[Tensor]:
    return [
        Tensor(param.shape(profile.sizes), TYPES[param.dtype])
        for param, writable in profile.kernel.pointers
        if not writable
    ]


@pytest.mark.parametrize("profile", PLUGINS, ids=lambda profile: f"{profile.kernel.name}, {profile.part}")
def test_tensorrt_sees_the_kernel(tensorrt: Any, profile: Profile) -> None:
    kernel, sizes = profile.kernel, profile.sizes
    layer = build(tensorrt, register(kernel, sizes, tensorrt, PTX), inputs_of(profile))
    outputs = [param for param, writable in kernel.pointers if writable]
    names = [param.name for param, writable in kernel.pointers if not writable]
    assert layer.outputs == [Tensor(param.shape(sizes), TYPES[param.dtype]) for param in outputs]
    assert layer.aliased == [names.index(param.name) if param.role == "inout" else -1 for param in outputs]
    assert (layer.kernel, layer.ptx, layer.extra) == (kernel.name, PTX, 0)
    x, y, z = kernel.grid(sizes)
    threads = kernel.threads(sizes)
    assert layer.launch == {
        "grid_x": x,
        "grid_y": y,
        "grid_z": z,
        "block_x": threads,
        "block_y": 1,
        "block_z": 1,
        "shared_mem": 0,
    }


def test_every_plugin_kernel_is_in_a_profile() -> None:
    assert {profile.kernel.name for profile in PLUGINS} == {kernel.name for kernel in KERNELS.values() if kernel.plugin}


def test_a_plugin_is_registered_once_for_its_sizes(tensorrt: Any) -> None:
    made = register(FIRST.kernel, FIRST.sizes, tensorrt, PTX)
    assert register(FIRST.kernel, FIRST.sizes, tensorrt, PTX) is made
    names = {plugin_name(profile.kernel, profile.sizes) for profile in PLUGINS if profile.kernel is FIRST.kernel}
    assert len(names) > 1


def test_tensors_that_the_kernel_is_not_made_for_are_refused(tensorrt: Any) -> None:
    made = register(FIRST.kernel, FIRST.sizes, tensorrt, PTX)
    tensors = inputs_of(FIRST)
    first = tensors[0]
    wrong = {
        "shape": Tensor((first.shape[0] + 1, *first.shape[1:]), first.dtype),
        "shape.*-1": Tensor((-1, *first.shape[1:]), first.dtype),
        "rank 1": Tensor(first.shape[:1], first.dtype),
        "HALF": Tensor(first.shape, DataType.HALF),
    }
    for message, tensor in wrong.items():
        with pytest.raises(ConfigError, match=f"attn_prep: q .*{message}"):
            build(tensorrt, made, [tensor, *tensors[1:]])


def test_a_kernel_of_the_runtime_is_no_plugin(tensorrt: Any) -> None:
    with pytest.raises(ConfigError, match="tree_build"):
        register(KERNELS["tree_build"], FIRST.sizes, tensorrt, PTX)
