"""A tiny NVFP4 checkpoint (W4A4, FP8 caches): its bundle for the CPU, and its segments for emulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from oracle import Oracle

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.base import Device
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import load_recipe
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.segments import KERNEL_WEIGHTS, build_segments, save_kernel_weights
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.writer import quantize_checkpoint

CONTEXT, PAGE = 256, 32
RECIPE = replace(load_recipe("cpu-nvfp4-w4a4"), context=CONTEXT, block_tokens=PAGE, prefill_chunk=128)
LAYOUT = Layout(
    io="f32",
    slots=4,
    page=PAGE,
    pages=4 * CONTEXT // PAGE + 400,
    max_pages=CONTEXT // PAGE,
    snapshots=100,
    nodes=16,
    chunk=128,
    mtp=True,
)


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The tiny checkpoint in NVFP4 (W4A4, FP8 caches)."""
    folder = tmp_path_factory.mktemp("device")
    make_checkpoint("tiny", folder / "source")
    texts = [[int(token) for token in np.random.default_rng(seed).integers(0, 1024, 40)] for seed in range(8)]
    quantize_checkpoint(folder / "source", folder / "nvfp4", named_recipe("nvfp4-all"), texts=texts)
    return Checkpoint.open(folder / "nvfp4")


@pytest.fixture(scope="session")
def bundle(quantized: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """For the CPU executor: the values that a device computes with."""
    return Bundle.open(build_bundle(quantized, tmp_path_factory.mktemp("bundle") / "cpu", RECIPE))


def write_segments(source: Checkpoint, folder: Path, weights: WeightFormat) -> Path:
    """What a device executor opens, lowered for ONNX Runtime."""
    build_segments(OrtOps(source, weights), folder, np.float32)
    save_kernel_weights(source, folder / KERNEL_WEIGHTS, CONTEXT, source.kv_scales)
    return folder


@pytest.fixture(scope="session")
def segments(quantized: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the NVFP4 checkpoint."""
    return write_segments(quantized, tmp_path_factory.mktemp("segments"), RECIPE.weight_format())


def open_device(device: Device, folder: Path, spec: ModelSpec, layout: Layout = LAYOUT) -> DeviceExecutor:
    """An executor that cuts contexts in two."""
    return DeviceExecutor(device, folder, spec, layout, splits=2, fingerprint="emulated")


@pytest.fixture
def executor(segments: Path, quantized: Checkpoint) -> Iterator[DeviceExecutor]:
    """Of the NVFP4 checkpoint, over kernels in NumPy."""
    made = open_device(EmulatedDevice(segments), segments, quantized.spec)
    yield made
    made.close()


class Exact(NamedTuple):
    """An executor over float32 weights, and what the CPU executor says of the same (FP8 caches in both)."""

    folder: Path  # of the segments
    executor: DeviceExecutor
    oracle: Oracle


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exact]:
    """See `Exact`. Rounded activations would make small differences large."""
    folder = tmp_path_factory.mktemp("exact")
    source = Checkpoint.open(make_checkpoint("tiny", folder / "source"))
    recipe = replace(RECIPE, precision="f32", activations="f32", accuracy_level=4)
    cpu = OrtExecutor(
        Bundle.open(build_bundle(source, folder / "cpu", recipe)), slots=1, context=CONTEXT, threads=1, speculation=True
    )
    (folder / "segments").mkdir()
    segments = write_segments(source, folder / "segments", recipe.weight_format())
    made = open_device(EmulatedDevice(segments), segments, source.spec)
    yield Exact(segments, made, Oracle(cpu))
    made.close()
    cpu.close()


@pytest.fixture(scope="session")
def layout() -> Layout:
    """Of the executors."""
    return LAYOUT
