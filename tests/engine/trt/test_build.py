"""Engines are really built, for a GPU that need not be here; what TensorRT-RTX chose is read from its layer list."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graph_runner import HashedModel

from edgellm.checkpoint.nvfp4 import E4M3
from edgellm.checkpoint.quantized_weights import Fp8Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.weights import Weight, WeightKind
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.manifest import MANIFEST_FILE, Manifest
from edgellm.engine.recipe import Recipe, TensorRtRecipe
from edgellm.engine.registry import open_executor
from edgellm.engine.trt.api import load_api
from edgellm.engine.trt.compiler import Compiler
from edgellm.engine.trt.engines import LAYERS_FILE, layer_report, read_layers
from edgellm.engine.trt.layer_list import LayerList
from edgellm.engine.trt.machine import Gpu
from edgellm.engine.trt.profiles import point, step_sizes
from edgellm.errors import BundleError, ConfigError, ExecutionError
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.export import build_tensorrt_graphs
from edgellm.graph.lowering.tensorrt import TensorRtForm
from edgellm.graph.weight_file import WeightFile

pytest.importorskip("tensorrt_rtx_bindings", reason="needs the extra tensorrt-rtx")

PROFILES = (1, 16)
RECIPE = Recipe(
    target="tensorrt-rtx",
    kv="bf16",
    prefill_chunk=128,
    context=4096,
    tensorrt=TensorRtRecipe("SM120", profiles=PROFILES),
)


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def built(nvfp4_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> Path:
    out = tmp_path_factory.mktemp("engines") / "tiny"
    return build_bundle(nvfp4_checkpoint, out, RECIPE, progress=lambda *call: steps.append(call))


@pytest.fixture(scope="module")
def layers(built: Path) -> dict[str, LayerList]:
    return read_layers(built / LAYERS_FILE)


def manifest(built: Path) -> Manifest:
    return Manifest.parse((built / MANIFEST_FILE).read_text())


@pytest.mark.parametrize("profile", range(len(PROFILES)))
def test_verify_has_native_products_and_one_attention_kernel_per_layer(
    layers: dict[str, LayerList], built: Path, profile: int
) -> None:
    spec = manifest(built).spec
    counts = layers["verify"].of_profile(profile).counts()
    # Into the mixer, out of it, gate and up, down; the head. The decay and rate projections stay bfloat16.
    assert counts["fp4_products"] == 4 * len(spec.layers) + 1
    assert counts["attention"] == len(spec.full_layers)


def test_prefill_and_mtp_too(layers: dict[str, LayerList], built: Path) -> None:
    spec = manifest(built).spec
    prefill = layers["prefill"].counts()
    assert prefill["fp4_products"] == 4 * len(spec.layers) + 1
    assert prefill["attention"] == len(spec.full_layers)
    for profile in range(len(PROFILES) + 1):  # and the prefill chunk
        mtp = layers["mtp"].of_profile(profile).counts()
        assert (mtp["fp4_products"], mtp["attention"]) == (4 + 2, 1)  # fc and the head
    assert not layers["mtp"].of_profile(len(PROFILES) + 1).layers


def test_no_matrix_is_decoded_on_the_way(layers: dict[str, LayerList]) -> None:
    """A product with FP4 weights reads FP4; no other kernel has them as its constants."""
    for name, found in layers.items():
        for layer in found.layers:
            if any(tensor.dtype == "FP4E2M1" for tensor in layer.constants):
                assert layer.is_fp4_product, (name, layer.name)


def test_float32_products_are_not_rounded_to_tf32(layers: dict[str, LayerList]) -> None:
    dtypes = {tensor.dtype for found in layers.values() for layer in found.layers for tensor in layer.inputs}
    assert "Float" in dtypes
    assert not {dtype for dtype in dtypes if "TF32" in dtype.upper()}


def test_the_report_has_a_line_for_every_profile(built: Path) -> None:
    lines = layer_report(built / LAYERS_FILE)
    assert [line.split(":")[0] for line in lines] == [
        *(f"verify, profile {profile}" for profile in range(2)),
        "prefill, profile 0",
        *(f"commit, profile {profile}" for profile in range(2)),
        *(f"mtp, profile {profile}" for profile in range(3)),
    ]
    assert "17 fp4 products" in lines[0]


def test_an_engine_whose_layers_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm.engine.trt.compiler.START", "no such start")
    graph = small_graph(tmp_path, "Sigmoid")
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM120")
    found = compiler.compile(graph, tmp_path / "out.engine", [step_sizes(1, point(1), 64)])
    assert (found.layers, found.unread) == ((), "the engine was built but does not load on this machine")
    assert (tmp_path / "out.engine").stat().st_size > 0


def test_what_the_bundle_says(built: Path, nvfp4_checkpoint: Path) -> None:
    said = manifest(built)
    assert said.target == "tensorrt-rtx"
    assert said.device is not None
    assert said.device.compute_capability == "SM120"
    assert said.device.tensorrt == load_api("tensorrt-rtx").__version__
    assert said.device.gpu is None
    assert Manifest.parse(said.to_json()) == said
    names = {entry.name for entry in said.files}
    assert names >= {"verify.engine", "prefill.engine", "commit.engine", "mtp.engine", "layers.json", "tokenizer.json"}
    assert {path.name for path in built.iterdir()} == names | {MANIFEST_FILE}, "graphs are not kept"


def test_progress_ends_at_its_total(built: Path, steps: list[tuple[str, int, int]]) -> None:
    phases = list(dict.fromkeys(phase for phase, _, _ in steps))
    engines = [f"engine {name}" for name in ("verify", "prefill", "commit", "mtp")]
    assert phases == ["checkpoint", "weights", *engines, "hash"]
    for phase in phases:
        done = [(count, total) for name, count, total in steps if name == phase]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"compute_capability": "SM121"}, "compute capability SM121, here it is SM120: rebuild the bundle"),
        ({"tensorrt": "1.2.0"}, "TensorRT 1.2.0, here it is .*: rebuild the bundle"),
        (None, "does not say what its engines depend on: rebuild"),
    ],
)
def test_a_bundle_of_another_machine_is_not_opened(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str] | None, named: str
) -> None:
    monkeypatch.setattr("edgellm.engine.trt.machine.find_gpu", lambda: Gpu("NVIDIA RTX PRO 2000", "SM120"))
    values = json.loads((built / MANIFEST_FILE).read_text())
    if change is None:
        del values["device"]
    else:
        values["device"] |= change
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(values))
    with pytest.raises(BundleError, match=named):
        Bundle.open(tmp_path)


def test_a_bundle_for_this_machine_is_opened(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm.engine.trt.machine.find_gpu", lambda: None)
    with pytest.raises(BundleError, match="does not fit: this machine shows no NVIDIA GPU"):
        Bundle.open(built)
    monkeypatch.setattr("edgellm.engine.trt.machine.find_gpu", lambda: Gpu("NVIDIA RTX PRO 2000", "SM120"))
    assert Bundle.open(built).manifest == manifest(built)


def test_there_is_no_silent_other_executor(built: Path) -> None:
    with pytest.raises(BundleError, match="was built in the form that no executor runs"):
        open_executor(Bundle(built, manifest(built), ""), slots=1)


def raise_it() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "interrupt",
    [raise_it, lambda: signal.raise_signal(signal.SIGINT), lambda: signal.raise_signal(signal.SIGTERM)],
    ids=["raised", "Ctrl-C", "terminated"],
)
def test_a_build_that_is_stopped_leaves_nothing(
    nvfp4_checkpoint: Path, tmp_path: Path, interrupt: Callable[[], None]
) -> None:
    def stop(phase: str, done: int, total: int) -> None:
        assert phase != "engine prefill", "it went on"
        if phase == "engine verify" and done == 1:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        build_bundle(nvfp4_checkpoint, tmp_path / "out", RECIPE, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_compute_capability_is_refused(tmp_path: Path) -> None:
    graph = small_graph(tmp_path, "Sigmoid")
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM110")
    with pytest.raises(ConfigError, match=r"builds for .*SM120.*, not for SM110"):
        compiler.compile(graph, tmp_path / "out.engine", [step_sizes(1, point(1), 64)])


def test_a_node_that_is_not_taken_is_named(tmp_path: Path) -> None:
    graph = small_graph(tmp_path, "LinearAttention", domain="com.microsoft")
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM120")
    with pytest.raises(ConfigError, match=r"small\.onnx: TensorRT .* node 'LinearAttention_\d' \(LinearAttention\)"):
        compiler.compile(graph, tmp_path / "out.engine", [step_sizes(1, point(1), 64)])


def test_what_cannot_be_built_is_told(tmp_path: Path) -> None:
    """Float32 attention has no kernel."""
    with WeightFile(tmp_path / "weights.bin") as file:
        g = GraphBuilder("attention", file)
        q = g.input("q", "f4", [1, 4, "S", 64])
        k, v = (g.input(name, "f4", [1, 2, "T", 64]) for name in "kv")
        bias = g.input("bias", "f4", [1, 1, "S", "T"])
        g.op("Attention", [q, k, v, bias], output=g.output("y", "f4", [1, 4, "S", 64]))
        g.save(tmp_path / "attention.onnx")
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM120")
    with pytest.raises(ExecutionError, match=r"attention\.onnx.* cannot build its .*Attention operation was not"):
        compiler.compile(tmp_path / "attention.onnx", tmp_path / "out.engine", [step_sizes(4, point(4), 64)])
    assert not (tmp_path / "out.engine").exists()


def test_an_input_without_a_size_is_named(tmp_path: Path) -> None:
    graph = small_graph(tmp_path, "Sigmoid")
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM120")
    with pytest.raises(ConfigError, match=r"small\.onnx: input 'x' has dimension 'S', which has no size"):
        compiler.compile(graph, tmp_path / "out.engine", [{"T": point(1)}])


def small_graph(folder: Path, kind: str, domain: str = "") -> Path:
    with WeightFile(folder / "weights.bin") as file:
        g = GraphBuilder("small", file)
        x = g.input("x", "f4", [1, "S", 8])
        g.op(kind, [x], output=g.output("y", "f4", [1, "S", 8]), domain=domain)
        g.save(folder / "small.onnx")
    return folder / "small.onnx"


class Fp8Model(HashedModel):
    """Matrices of the layers in FP8, with one scale for all and one for their inputs."""

    def kind(self, name: str) -> WeightKind:
        return "fp8" if name.endswith("_proj.weight") else "f32"

    def weight(self, name: str) -> Weight:
        if self.kind(name) != "fp8":
            return super().weight(name)
        return Fp8Weight(self.tensor(name).astype(E4M3), np.ones((1, 1), np.float32), np.float32(0.01))


def test_fp8_products_are_native_too(tmp_path: Path) -> None:
    model = Fp8Model("equal-tied")
    build_tensorrt_graphs(model, tmp_path, TensorRtForm(), prefill_chunk=64)
    compiler = Compiler(load_api("tensorrt-rtx"), capability="SM120")
    found = compiler.compile(tmp_path / "verify.onnx", tmp_path / "out.engine", [step_sizes(16, point(16), 256)])
    products = [layer for layer in found.layers if layer.kind == "gemm"]
    native = [layer for layer in products if [x.dtype for x in (*layer.inputs, *layer.constants)].count("FP8") >= 2]
    # Of each layer out of the mixer, gate and up, down; into attention.
    assert len(native) == 3 * len(model.spec.layers) + len(model.spec.full_layers)


def test_the_checkpoint_is_w4a4(nvfp4_checkpoint: Path) -> None:
    """Otherwise the counts above would mean nothing."""
    source = Checkpoint.open(nvfp4_checkpoint)
    assert {source.kind(name) for name in source.matrices} == {"nvfp4", "bf16"}
