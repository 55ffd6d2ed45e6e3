"""A thin writer of ONNX graphs and of the one weight file that several graphs share.

What must stay true: a weight name is written to the file once, whichever graph asks for it first, and every graph that
uses it refers to the same bytes; memory holds about one weight at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 24
IR_VERSION = 12
MS = "com.microsoft"
ALIGNMENT = 4096  # of a tensor in the weight file: lets a runtime map it
Dim = int | str
AnyArray = NDArray[Any]

_TENSOR_TYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}


class WeightFile:
    """Append-only file of raw tensors; `tensors` maps a name to its external-data reference."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorProto] = {}
        self._file: BinaryIO = path.open("wb")
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, load: Callable[[], AnyArray]) -> TensorProto:
        """The tensor called `name`; `load` is called only when it is not in the file yet."""
        if name not in self.tensors:
            array = np.ascontiguousarray(load())
            padding = -self._offset % ALIGNMENT
            self._file.write(b"\0" * padding)
            self._offset += padding
            tensor = TensorProto(name=name, data_type=_TENSOR_TYPES[array.dtype], dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", self.path.name), ("offset", self._offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            self._file.write(array.view(np.uint8).reshape(-1).data if array.size else b"")
            self._offset += array.nbytes
            self.tensors[name] = tensor
        return self.tensors[name]


class GraphBuilder:
    """Collects nodes, inputs, outputs and initializers of one graph. Values are referred to by name."""

    def __init__(self, name: str, weights: WeightFile) -> None:
        self.name = name
        self._file = weights
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._count = 0

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, _TENSOR_TYPES[np.dtype(dtype)], shape))
        return name

    def output(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare a graph output; pass the name in `outputs` of the node that makes it."""
        self._outputs.append(helper.make_tensor_value_info(name, _TENSOR_TYPES[np.dtype(dtype)], shape))
        return name

    def weight(self, name: str, load: Callable[[], AnyArray]) -> str:
        """An initializer that lives in the shared weight file."""
        self._initializers.setdefault(name, self._file.add(name, load))
        return name

    def const(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """A small constant kept inside the graph; equal constants share one initializer."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"const_{len(self._constants)}"
            self._initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def op(
        self, kind: str, inputs: Sequence[str], *, domain: str = "", output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output and return its name."""
        return self.ops(kind, inputs, [output or self._fresh(kind)], domain=domain, **attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], outputs: int | Sequence[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs; an empty output name skips that output."""
        names = [self._fresh(kind) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        given = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(
            helper.make_node(kind, list(inputs), names, name=f"{kind}_{len(self._nodes)}", domain=domain, **given)
        )
        return names

    def split(self, value: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        """Split into parts of fixed sizes."""
        return self.ops("Split", [value, self.const(sizes)], len(sizes), axis=axis)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape; 0 keeps a dimension, -1 infers one."""
        return self.op("Reshape", [value, self.const(shape)])

    def save(self, path: Path) -> None:
        """Write the graph; weights stay in the shared file beside it."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        domains = {node.domain for node in self._nodes}
        imports = [helper.make_opsetid("", OPSET)] + [helper.make_opsetid(d, 1) for d in sorted(domains - {""})]
        model = helper.make_model(graph, opset_imports=imports, producer_name="edgellm")
        model.ir_version = IR_VERSION
        path.write_bytes(model.SerializeToString())

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}_out"
