"""The plugin form: segments and plugins become one network, which computes what the executor's programs compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.base import Chunk, TokenTree
from edgellm.engine.device.base import Copy
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.stitch import Network as Stitched
from edgellm.engine.device.stitch import stitch
from edgellm.engine.device.symbolic import SymbolicDevice
from edgellm.engine.ort_session import open_session
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.engine.trt import plugins
from edgellm.engine.trt.plugin_network import connect, write_side_by_side
from edgellm.errors import ExecutionError
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.segments import KERNEL_WEIGHTS, build_segments, save_kernel_weights
from edgellm.kernels.spec import Kernel, numpy_dtype

LAYOUT = Layout(io="f32", slots=1, page=32, pages=8, max_pages=8, snapshots=100, nodes=16, chunk=64, mtp=True)


@dataclass(eq=False)
class Tensor:
    name: str
    shape: tuple[int, ...]


@dataclass
class Layer:
    """Of any kind: `run` computes its outputs from its inputs."""

    run: Any
    inputs: list[Tensor]
    outputs: list[Tensor]
    name: str = ""
    reshape_dims: tuple[int, ...] = ()

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> Tensor:
        return self.inputs[index]

    def set_input(self, index: int, tensor: Tensor) -> None:
        self.inputs[index] = tensor

    def get_output(self, index: int) -> Tensor:
        if self.reshape_dims:
            self.outputs[0].shape = self.reshape_dims
        return self.outputs[index]


@dataclass
class Network:
    """What of INetworkDefinition is used; a parsed segment is one layer."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))
    num_layers = property(lambda self: len(self.layers))

    def get_input(self, index: int) -> Tensor:
        return self.inputs[index]

    def get_output(self, index: int) -> Tensor:
        return self.outputs[index]

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def add_input(self, name: str, dtype: Any, shape: Sequence[int]) -> Tensor:
        assert name not in {tensor.name for tensor in self.inputs}, f"repeated input {name}"
        self.inputs.append(Tensor(name, tuple(shape)))
        return self.inputs[-1]

    def remove_tensor(self, tensor: Tensor) -> None:
        assert not any(tensor in layer.inputs for layer in self.layers), f"{tensor.name} is still read"
        self.inputs.remove(tensor)

    def mark_output(self, tensor: Tensor) -> None:
        self.outputs.append(tensor)

    def unmark_output(self, tensor: Tensor) -> None:
        self.outputs.remove(tensor)

    def add_shuffle(self, tensor: Tensor) -> Layer:
        layer = Layer(None, [tensor], [Tensor("", ())])

        def run(values: list[Any]) -> list[Any]:
            return [values[0].reshape(layer.reshape_dims)]

        layer.run = run
        self.layers.append(layer)
        return layer

    def add_plugin(self, made: tuple[Any, list[Tensor], list[Tensor]], aot: bool) -> Layer:
        assert aot
        self.layers.append(Layer(*made))
        return self.layers[-1]

    def parse(self, folder: Path, graph: Path) -> None:
        """As the parser does: inputs, outputs, and here one layer for each segment."""
        whole = onnx.load(graph, load_external_data=False).graph
        known = {value.name: Tensor(value.name, _shape(value)) for value in (*whole.input, *whole.output)}
        self.inputs += [known[value.name] for value in whole.input]
        self.outputs += [known[value.name] for value in whole.output]
        for stem in dict.fromkeys(name.partition("/")[0] for name in known):
            session = open_session(folder / f"{stem}.onnx", 1)
            takes, gives = ([value.name for value in part] for part in (session.get_inputs(), session.get_outputs()))

            def run(values: list[Any], session: Any = session, takes: Any = takes, gives: Any = gives) -> list[Any]:
                made: list[Any] = session.run(gives, dict(zip(takes, values, strict=True)))
                return made

            names = [[known[f"{stem}/{name}"] for name in part] for part in (takes, gives)]
            self.layers.append(Layer(run, *names))

    def compute(self, values: dict[str, Any]) -> dict[str, Any]:
        """Outputs by name; layers run when their inputs are there."""
        held = {id(tensor): values[tensor.name] for tensor in self.inputs}
        left = list(self.layers)
        while left:
            ready = [layer for layer in left if all(id(tensor) in held for tensor in layer.inputs)]
            assert ready, "a circle of layers"
            for layer in ready:
                made = layer.run([held[id(tensor)] for tensor in layer.inputs])
                held |= {id(tensor): value for tensor, value in zip(layer.outputs, made, strict=True)}
            left = [layer for layer in left if layer not in ready]
        return {tensor.name: held[id(tensor)] for tensor in self.outputs}


def _shape(value: Any) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    assert not any(dim.dim_param for dim in dims)
    return tuple(dim.dim_value for dim in dims)


def reference_plugin(kernel: Kernel, sizes: Any) -> Any:
    """In place of `plugins.register`: a layer that runs the kernel's reference."""
    assert kernel.plugin, f"{kernel.name} is no plugin"

    def layer(*inputs: Tensor) -> tuple[Any, list[Tensor], list[Tensor]]:
        names = [param.name for param, writable in kernel.pointers if not writable]
        written = [param for param, writable in kernel.pointers if writable]
        for param, tensor in zip((p for p, w in kernel.pointers if not w), inputs, strict=True):
            assert tensor.shape == param.shape(sizes), param.name

        def run(values: list[Any]) -> list[Any]:
            given = {name: np.array(value) for name, value in zip(names, values, strict=True)}
            for param in written:
                if param.role == "out":
                    given[param.name] = np.zeros(param.shape(sizes), numpy_dtype(param.dtype, sizes))
            kernel.reference(sizes, given)
            return [given[param.name] for param in written]

        return run, list(inputs), [Tensor("", param.shape(sizes)) for param in written]

    return layer


API = SimpleNamespace(DataType=SimpleNamespace(**{name: name for name in ("FLOAT", "INT32", "INT64", "FP8")}))


@pytest.fixture(scope="module")
def segments(nvfp4_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    source = Checkpoint.open(nvfp4_checkpoint)
    build_segments(OrtOps(source, WeightFormat("nvfp4", accuracy_level=0)), folder, np.float32)
    save_kernel_weights(source, folder / KERNEL_WEIGHTS, 256, source.kv_scales)
    return folder


@pytest.fixture(scope="module")
def spec(nvfp4_checkpoint: Path) -> Any:
    return Checkpoint.open(nvfp4_checkpoint).spec


def verify_network(executor: DeviceExecutor) -> Stitched:
    """Of the step over 16 nodes, first turn."""
    memory = executor.decoder.memory[0]
    return executor.decoder.trees[16].network(memory, *memory.capsules)


def arrays(executor: DeviceExecutor, planned: Stitched) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `planned`'s inputs and outputs are in the program of an executor without addresses."""
    memory, step = executor.decoder.memory[0], executor.decoder.trees[16]
    inputs, outputs = {}, {}
    for node, operation in zip(planned.nodes, step.inner(memory, *memory.capsules), strict=True):
        assert not isinstance(operation, Copy)
        inputs |= {tensor: operation.tensors[name] for name, tensor in node.inputs.items() if tensor in planned.inputs}
        outputs |= {
            tensor: operation.tensors[name] for name, tensor in node.outputs.items() if tensor in planned.outputs
        }
    return inputs, outputs


def test_the_network_computes_what_the_program_does(segments: Path, spec: Any) -> None:
    planned = verify_network(DeviceExecutor(SymbolicDevice(), segments, spec, LAYOUT, splits=2, fingerprint=""))
    network = Network()
    network.parse(segments, write_side_by_side(segments, planned, 16))
    connect(network, API, planned, reference_plugin)

    device = EmulatedDevice(segments)
    executor = DeviceExecutor(device, segments, spec, LAYOUT, splits=2, fingerprint="")
    executor.advance([Chunk(0, list(range(40)), False)])
    tree = TokenTree(0, [5, 6, 7, 8, 9], [-1, 0, 0, 1, 3])
    executor.verify(tree)
    executor.reset(0)
    executor.advance([Chunk(0, list(range(40)), False)])
    executor.decoder.slots[0].turn = 0
    inputs, outputs = arrays(executor, planned)
    before = {name: device.download(buffer) for name, buffer in inputs.items()}
    rows = executor.verify(tree)
    # What verify uploads and tree_build makes.
    for name in before:
        if name.partition(".")[0] in ("input_ids", "parents", "control", "accepted", "position_ids", "ancestors"):
            before[name] = device.download(inputs[name])
    made = network.compute(before)
    assert set(made) == set(outputs)
    for name, buffer in outputs.items():
        found, expected = made[name], device.download(buffer)
        size = 5 if name.rpartition(".")[2] in ("hidden", "logits", "cap_c", "tail_k", "tail_v") else len(found)
        np.testing.assert_array_equal(found[:size], expected[:size], err_msg=name)
    np.testing.assert_array_equal(made["head.logits"][4], rows.row(4))


def test_the_engine_is_made_from_a_bundles_folder(
    segments: Path, spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan, graph, PTX and connections; TensorRT's compiler is the stand-in."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra kernels")
    ptx: list[bytes] = []

    def register(kernel: Kernel, sizes: Any, api: Any, binary: bytes) -> Any:
        ptx.append(binary)
        return reference_plugin(kernel, sizes)

    monkeypatch.setattr(plugins.plugins, "register", register)
    built: list[Network] = []

    class Compiler:
        def compile(self, graph: Path, out: Path, profiles: Any, put: Any) -> str:
            assert profiles == []  # every size is fixed
            built.append(Network())
            built[0].parse(segments, graph)
            put(built[0])
            return "layers"

    step = plugins.planned_step(segments, spec, LAYOUT, 2)
    compiler: Any = Compiler()
    layers, hashes = plugins.compile_plugins(compiler, API, step, segments, tmp_path / "verify.engine", "sm_110a")
    assert layers == "layers"
    assert {name.rpartition("_")[0] for name in hashes} == {
        "gdn_prep",
        "gdn_tree_verify",
        "attn_prep",
        "tree_attn_partial",
        "tree_attn_reduce",
    }
    assert all(binary.lstrip().startswith(b"//") and b".version 9.0" in binary for binary in ptx)
    assert {tensor.name for tensor in built[0].inputs} == set(step.inputs)
    assert {tensor.name for tensor in built[0].outputs} == set(step.outputs)


def test_names_do_not_depend_on_turn_or_slot(segments: Path, spec: Any) -> None:
    executor = DeviceExecutor(SymbolicDevice(), segments, spec, LAYOUT, splits=2, fingerprint="")
    memory, step = executor.decoder.memory[0], executor.decoder.trees[16]
    turns = [step.network(memory, *memory.capsules[::way]) for way in (1, -1)]
    assert list(turns[0].inputs) == list(turns[1].inputs)
    assert list(turns[0].outputs) == list(turns[1].outputs)
    assert turns[0].inputs["cap_k.0"] != turns[1].inputs["cap_k.0"]


def test_a_copy_is_no_part_of_a_network() -> None:
    device = SymbolicDevice()
    buffers = [device.zeros((4,), np.int32) for _ in range(2)]
    with pytest.raises(TypeError, match="is no part of a network"):
        stitch([Copy(*buffers)], [])


def test_a_plugin_that_is_not_taken_is_named(segments: Path, spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = verify_network(DeviceExecutor(SymbolicDevice(), segments, spec, LAYOUT, splits=2, fingerprint=""))
    network = Network()
    network.parse(segments, write_side_by_side(segments, planned, 16))
    monkeypatch.setattr(network, "add_plugin", lambda made, aot: None)
    with pytest.raises(ExecutionError, match="does not take the plugin gdn_prep"):
        connect(network, API, planned, reference_plugin)
