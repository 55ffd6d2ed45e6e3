"""The plugin form: one network of the model's segments with the kernels between them as plugins.

The segments come from one ONNX graph that has them side by side; after parsing, each input of a segment is replaced by
what the plugin or segment before makes. What must stay true: the engine's inputs and outputs are those of the stitched
program (`device.stitch`), by the same names, so that the executor binds its buffers by running the same stitching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import onnx
from onnx.compose import add_prefix

from edgellm.engine.device.base import Buffer, Launch
from edgellm.engine.device.stitch import Network as Stitched
from edgellm.engine.device.stitch import Node
from edgellm.engine.trt.api import Api, Network, Tensor
from edgellm.errors import ExecutionError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, Param

SIDE_BY_SIDE: Final = "segments.onnx"

_Item = TypeVar("_Item")
Plugin = Callable[..., Any]
Plugins = Callable[[Kernel, Sizes], Plugin]


def write_side_by_side(folder: Path, stitched: Stitched, tokens: int) -> Path:
    """Write the segments that `stitched` runs, in `folder`, as one graph for steps of `tokens` scored tokens.

    Values of a segment have its file name before theirs: ``segment_03/residual``.
    """
    whole = onnx.GraphProto(name="segments")
    imports: dict[str, int] = {}
    for node in stitched.nodes:
        if isinstance(node.operation, Launch):
            continue
        model = onnx.load(folder / f"{node.operation.engine}.onnx", load_external_data=False)
        imports |= {entry.domain: entry.version for entry in model.opset_import}
        graph = add_prefix(model, f"{_stem(node)}/").graph
        whole.node.extend(graph.node)
        whole.initializer.extend(graph.initializer)
        whole.input.extend(graph.input)
        whole.output.extend(graph.output)
    for value in (*whole.input, *whole.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:  # S and R
                dim.dim_value = tokens
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    made = onnx.helper.make_model(whole, opset_imports=opsets, producer_name="edgellm")
    made.ir_version = model.ir_version
    path = folder / SIDE_BY_SIDE
    path.write_bytes(made.SerializeToString())
    return path


def connect(network: Network, api: Api, stitched: Stitched, plugins: Plugins) -> None:
    """Turn the parsed `SIDE_BY_SIDE` graph in `network` into the network of `stitched`.

    Args:
        network: TensorRT's, just parsed.
        api: the module.
        plugins: what makes a kernel's plugin layer from its input tensors.

    Raises:
        ExecutionError: TensorRT does not take a plugin, or has other inputs and outputs than the segments.
    """
    placeholders = {tensor.name: tensor for tensor in _each(network.get_input, network.num_inputs)}
    results = {tensor.name: tensor for tensor in _each(network.get_output, network.num_outputs)}
    for tensor in results.values():
        network.unmark_output(tensor)
    tensors = {name: _declared(network, api, name, buffer) for name, buffer in stitched.inputs.items()}
    sources: dict[str, Tensor] = {}  # placeholder → what stands in its place
    for node in stitched.nodes:
        if isinstance(node.operation, Launch):
            _add_plugin(network, node, node.operation, tensors, plugins)
            continue
        for name, value in node.inputs.items():
            sources[f"{_stem(node)}/{name}"] = _shaped(network, tensors[value], node.operation.tensors[name].shape)
        for name, value in node.outputs.items():
            tensors[value] = _found(results, f"{_stem(node)}/{name}")
    for layer in _each(network.get_layer, network.num_layers):
        for place in range(layer.num_inputs):
            given = layer.get_input(place)
            if given is not None and given.name in sources:
                layer.set_input(place, sources[given.name])
    for name in sources:
        network.remove_tensor(_found(placeholders, name))
    for name, buffer in stitched.outputs.items():
        made = _shaped(network, tensors[name], buffer.shape)
        made.name = name
        network.mark_output(made)


def _add_plugin(network: Network, node: Node, launch: Launch, tensors: dict[str, Tensor], plugins: Plugins) -> None:
    kernel, sizes = launch.kernel, launch.sizes
    given = [param for param, writable in kernel.pointers if not writable]
    inputs = [_shaped(network, tensors[node.inputs[param.name]], param.shape(sizes)) for param in given]
    layer = network.add_plugin(plugins(kernel, sizes)(*inputs), aot=True)
    if layer is None:
        raise ExecutionError(f"TensorRT does not take the plugin {kernel.name}")
    layer.name = next(iter(node.outputs.values())).rpartition(".")[0]
    for index, param in enumerate(_written(kernel)):
        tensors[node.outputs[param.name]] = layer.get_output(index)


def _written(kernel: Kernel) -> list[Param]:
    return [param for param, writable in kernel.pointers if writable]


def _declared(network: Network, api: Api, name: str, buffer: Buffer) -> Tensor:
    types = {
        "bfloat16": "BF16",
        "float16": "HALF",
        "float32": "FLOAT",
        "int32": "INT32",
        "int64": "INT64",
        "float8_e4m3fn": "FP8",
    }
    return network.add_input(name, getattr(api.DataType, types[buffer.dtype.name]), buffer.shape)


def _shaped(network: Network, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with this shape: the one it has, or by a layer that moves nothing."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    layer = network.add_shuffle(tensor)
    layer.reshape_dims = tuple(shape)
    return layer.get_output(0)


def _found(known: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in known:
        raise ExecutionError(f"the parsed segments have no tensor {name!r}")
    return known[name]


def _stem(node: Node) -> str:
    assert not isinstance(node.operation, Launch)
    return node.operation.engine


def _each(get: Callable[[int], _Item], count: int) -> list[_Item]:
    return [get(index) for index in range(count)]
