"""What a device engine depends on besides its graph: GPU, L4T, CUDA and TensorRT, as a `Device` of the manifest.

A plan file that another release made, or that was made for another GPU, fails somewhere in TensorRT with a message
that helps nobody; `misfit` says it first.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgellm.engine.manifest import Device
from edgellm.engine.recipe import TensorRtRecipe
from edgellm.engine.trt.api import Api, load_api
from edgellm.errors import ConfigError

_TEGRA: Final = Path("/etc/nv_tegra_release")
_RELEASE: Final = re.compile(r"# R(\d+) \(release\), REVISION: ([\d.]+)")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU."""

    name: str
    capability: str  # "SM110"


def find_gpu() -> Gpu | None:
    """The first GPU that the driver shows; None: there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, name, numbers = ctypes.c_int(), ctypes.create_string_buffer(256), (ctypes.c_int(), ctypes.c_int())
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None
    cuda.cuDeviceGetName(name, len(name), device)
    for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return Gpu(name.value.decode(errors="replace"), f"SM{numbers[0].value}{numbers[1].value}")


def l4t_release(path: Path = _TEGRA) -> str | None:
    """L4T, "38.2.0"; None: this is no Jetson."""
    try:
        found = _RELEASE.match(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return f"{found[1]}.{found[2]}" if found else None


def cuda_version() -> str | None:
    """Newest CUDA that the driver runs, "13.0"; None: there is no driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def stamp(api: Api, recipe: TensorRtRecipe, ahead_of_time: bool, kernels: Mapping[str, str]) -> Device:
    """What an engine that is built now, with `kernels`, depends on. One built ahead of time does not depend on the
    machine it is built on."""
    gpu = None if ahead_of_time else find_gpu()
    return Device(
        tensorrt=api.__version__,
        compute_capability=recipe.compute_capability,
        gpu=gpu.name if gpu else None,
        l4t=None if ahead_of_time else l4t_release(),
        cuda=None if ahead_of_time else cuda_version(),
        form=recipe.form,
        activations=recipe.activations,
        splits=recipe.splits,
        kernels=kernels,
    )


def misfit(target: str, device: Device) -> str | None:
    """Why an engine with this stamp cannot run here and what to do; None: it can."""
    try:
        version = load_api(target).__version__
    except ConfigError as error:
        return str(error)
    gpu = find_gpu()
    if gpu is None:
        return "this machine shows no NVIDIA GPU"
    for what, built, here in (
        ("TensorRT", device.tensorrt, version),
        ("compute capability", device.compute_capability, gpu.capability),
        ("L4T", device.l4t, l4t_release()),
        ("CUDA", device.cuda, cuda_version()),
    ):
        if built is not None and built != here:
            return f"its engines were built for {what} {built}, here it is {here or 'absent'}: rebuild the bundle"
    return None
