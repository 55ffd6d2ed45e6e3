"""One ONNX graph with its buffers bound: big tensors once per binding, small inputs rewritten in place.

ONNX Runtime reads and writes the NumPy arrays directly; a state bound as input and output under `X` and `X_out` is
updated in place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[Any]
_BINDINGS = 96  # kept per graph; each is a few kilobytes of references


@dataclass(frozen=True, slots=True)
class Binding:
    """A prepared call: write into `inputs`, run, read `outputs`."""

    io: Any
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


class BoundGraph:
    """An inference session and its most recent bindings."""

    def __init__(self, path: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [value.name for value in self._session.get_outputs()]
        self._bindings: OrderedDict[Hashable, Binding] = OrderedDict()

    def bind(self, key: Hashable, make: Callable[[], tuple[Mapping[str, Array], Mapping[str, Array]]]) -> Binding:
        """The binding of `key`; `make` returns (inputs, outputs) as arrays when it has to be built.

        Outputs that are not named stay unbound by the caller's choice and raise: every output needs a buffer.
        """
        found = self._bindings.get(key)
        if found is not None:
            self._bindings.move_to_end(key)
            return found
        inputs, outputs = make()
        io = self._session.io_binding()
        for name, array in inputs.items():
            io.bind_ortvalue_input(name, _value(array))
        for name in self._names:
            io.bind_ortvalue_output(name, _value(outputs[name]))
        binding = self._bindings[key] = Binding(io, inputs, outputs)
        if len(self._bindings) > _BINDINGS:
            self._bindings.popitem(last=False)
        return binding

    def run(self, binding: Binding, **changing: Array) -> None:
        """Run; `changing` are inputs whose shape differs from call to call."""
        values = [_value(np.ascontiguousarray(array)) for array in changing.values()]
        for name, value in zip(changing, values, strict=True):
            binding.io.bind_ortvalue_input(name, value)
        self._session.run_with_iobinding(binding.io)


def _value(array: Array) -> Any:
    """An OrtValue over the array's own memory (0-d arrays and empty ones included)."""
    return ort.OrtValue.ortvalue_from_numpy(array)
