"""`GraphBuilder`: writes one ONNX graph, node by node. Values are referred to by name (`str`).

Owns naming, constants, model-local functions and the file format. What must stay true: a graph is saved with its
weights referring to the shared weight file (see `weight_file`), so that several graphs cost one copy of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

from edgellm.graph.weight_file import AnyArray, WeightFile, tensor_type

OPSET: Final = 24
IR_VERSION: Final = 12
MICROSOFT: Final = "com.microsoft"  # ONNX Runtime's own operators
LOCAL: Final = "edgellm"  # model-local functions
Dim = int | str


class GraphBuilder:
    """Collects the nodes, inputs, outputs and initializers of one graph.

    Args:
        name: of the graph.
        weights: where initializers made by `weight` live; None for a function body, which has none and keeps its
            constants as nodes.
        sizes: symbolic dimensions of inputs and outputs that have a fixed size in this graph.
    """

    def __init__(self, name: str, weights: WeightFile | None, sizes: Mapping[str, int] | None = None) -> None:
        self.name = name
        self._weights = weights
        self._sizes = sizes or {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._count = itertools.count(1)
        self._used: set[str] = set()  # values that some node reads
        self._domains: set[str] = set()  # of nodes, beside the standard one

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare a graph input."""
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> str:
        """Declare a graph output; pass the name as `output` of the node that makes it."""
        self._outputs.append(self._value(name, dtype, shape))
        return name

    def weight(self, name: str, load: Callable[[], AnyArray]) -> str:
        """An initializer of the shared weight file; `load` is called when no graph has written it yet."""
        if self._weights is None:
            raise TypeError(f"function body {self.name!r} cannot own the weight {name!r}: pass it as an input")
        self._initializers[name] = self._weights.add(name, load)
        return name

    def stream(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], pieces: Callable[[], Iterable[AnyArray]]
    ) -> str:
        """Like `weight` for a large one that is made piece by piece along its first axis."""
        if self._weights is None:
            raise TypeError(f"function body {self.name!r} cannot own the weight {name!r}: pass it as an input")
        self._initializers[name] = self._weights.stream(name, dtype, shape, pieces)
        return name

    def view(self, name: str, of: str, shape: Sequence[int]) -> str:
        """An initializer over the bytes of the weight `of`, which is in the file, with another shape."""
        if self._weights is None:
            raise TypeError(f"function body {self.name!r} has no weights")
        self._initializers[name] = self._weights.view(name, of, shape)
        return name

    def const(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """A small constant kept inside the graph; equal constants share one name."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"const_{len(self._constants)}"
            tensor = numpy_helper.from_array(array, name)
            if self._weights is None:
                self.ops("Constant", [], [name], value=tensor)
            else:
                self._initializers[name] = tensor
        return self._constants[key]

    def op(
        self, kind: str, inputs: Sequence[str], *, domain: str = "", output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output and return its name."""
        return self.ops(kind, inputs, [output or self._fresh(kind)], domain=domain, **attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], outputs: int | Sequence[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs; an empty output name skips that output. Attributes of None are left out."""
        names = [self._fresh(kind) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        given = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(kind, list(inputs), names, name=f"{kind}_{len(self._nodes)}", domain=domain, **given)
        self._nodes.append(node)
        self._used.update(inputs)
        self._domains.update({domain} - {""})
        return names

    def split(
        self, value: str, sizes: Sequence[int], axis: int = -1, outputs: Sequence[str] | None = None
    ) -> list[str]:
        """Split into parts of fixed sizes; `outputs` names those that are not ""."""
        names = [name or self._fresh("Split") for name in outputs or [""] * len(sizes)]
        return self.ops("Split", [value, self.const(sizes)], names, axis=axis)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape; 0 keeps a dimension, -1 infers one."""
        return self.op("Reshape", [value, self.const(shape)])

    def cast(self, value: str, dtype: DTypeLike, output: str | None = None) -> str:
        """The value as another dtype."""
        return self.op("Cast", [value], output=output, to=tensor_type(dtype))

    def function(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], body: Callable[[GraphBuilder], None]
    ) -> None:
        """Define the model-local function `kind` unless it is there; call it as an op of domain `LOCAL`.

        Args:
            inputs: names of the values that `body` reads.
            outputs: names of the values that `body` makes.
            body: adds the nodes to the builder it is given.
        """
        if kind in self._functions:
            return
        inner = GraphBuilder(kind, None)
        body(inner)
        self._functions[kind] = helper.make_function(
            LOCAL, kind, list(inputs), list(outputs), inner._nodes, inner._imports()
        )

    def choose(
        self,
        condition: str,
        outputs: Sequence[str],
        then: Callable[[GraphBuilder], Sequence[str]],
        otherwise: Callable[[GraphBuilder], Sequence[str]],
    ) -> list[str]:
        """Run one of two bodies; all results are float32.

        Args:
            condition: bool [].
            outputs: names of the results.
            then, otherwise: add their nodes to the builder they are given, which sees all values of this one, and
                return their results in the order of `outputs`.
        """
        branches = {}
        for attribute, body in (("then_branch", then), ("else_branch", otherwise)):
            inner = GraphBuilder(f"{self.name}_{attribute}", self._weights)
            inner._initializers, inner._constants = self._initializers, self._constants
            inner._count, inner._used = self._count, self._used
            results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in body(inner)]
            branches[attribute] = helper.make_graph(inner._nodes, inner.name, [], results)
            self._domains |= inner._domains
        return self.ops("If", [condition], outputs, **branches)

    def save(self, path: Path) -> None:
        """Write the graph to `path`, in the folder of the weight file."""
        tensors = [tensor for name, tensor in self._initializers.items() if name in self._used]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, tensors)
        functions = list(self._functions.values())
        model = helper.make_model(graph, opset_imports=self._imports(), functions=functions, producer_name="edgellm")
        model.ir_version = IR_VERSION
        path.write_bytes(model.SerializeToString())

    def _value(self, name: str, dtype: DTypeLike, shape: Sequence[Dim]) -> onnx.ValueInfoProto:
        sizes = [self._sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in shape]
        return helper.make_tensor_value_info(name, tensor_type(dtype), sizes)

    def _imports(self) -> list[onnx.OperatorSetIdProto]:
        return [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in sorted(self._domains))]

    def _fresh(self, kind: str) -> str:
        return f"{kind}_{next(self._count)}_out"
