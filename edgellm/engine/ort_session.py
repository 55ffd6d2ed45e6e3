"""One ONNX graph and its bound calls.

ONNX Runtime reads and writes the NumPy arrays directly: nothing is copied per call. A state bound as the input `x` and
the output `x_out` is updated in place. What must stay true: every input and output of a graph has a buffer, and the
arrays of a binding are written only in place while the binding lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[Any]
F32 = NDArray[np.float32]
_BINDINGS: Final = 64  # kept per graph; each is some kilobytes of references
# Idle workers wait this long before they sleep: long enough for the gap between two nodes of a graph, short enough not
# to take a core from the next graph of a decode step (each session has its own workers) or from the rest of the
# process. Measured on two cores: decode 15 % and draft + verify + commit 14 % faster than with the default, and 25 %
# faster than without any wait.
_SPIN_MICROSECONDS: Final = 100


@dataclass(frozen=True, slots=True)
class Binding:
    """A prepared call: write into `inputs`, run, read `outputs`."""

    io: Any
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def open_session(path: Path, threads: int) -> ort.InferenceSession:
    """A session on the CPU whose failures come back as exceptions and are not logged."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class BoundGraph:
    """An inference session and its most recent bindings."""

    def __init__(self, path: Path, threads: int) -> None:
        self._session = open_session(path, threads)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._bindings: OrderedDict[Hashable, Binding] = OrderedDict()

    def bind(self, key: Hashable, make: Callable[[], tuple[Mapping[str, Array], Mapping[str, Array]]]) -> Binding:
        """The binding of `key`. `make` returns (inputs, outputs) when it has to be built.

        Inputs whose shape differs from call to call are left out and given to `run`.
        """
        found = self._bindings.get(key)
        if found is not None:
            self._bindings.move_to_end(key)
            return found
        inputs, outputs = make()
        io = self._session.io_binding()
        for name in self._inputs:
            if name in inputs:
                io.bind_ortvalue_input(name, _value(inputs[name]))
        for name in self._outputs:
            io.bind_ortvalue_output(name, _value(outputs[name]))
        binding = self._bindings[key] = Binding(io, inputs, outputs)
        if len(self._bindings) > _BINDINGS:
            self._bindings.popitem(last=False)
        return binding

    def run(self, binding: Binding, **changing: Array) -> None:
        """Run. `changing` are the inputs that the binding leaves out."""
        values = {name: _value(array) for name, array in changing.items()}  # alive until the run has ended
        for name, value in values.items():
            binding.io.bind_ortvalue_input(name, value)
        self._session.run_with_iobinding(binding.io)


class BiasBuffer:
    """Attention bias [1, 1, S, T]: zero but for the last columns, where `mask` says what a row must not see.

    One zeroed buffer serves all calls: only the mask is written, and erased before the next one, so that a call costs
    S x S elements however long the sequence is. T must be exactly the sequence length for GroupQueryAttention.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._flat: F32 = np.zeros(rows * columns, np.float32)
        self._written: F32 = self._flat[:0]

    def fill(self, mask: F32, total: int) -> F32:
        """The bias for `mask` [S, W] over the last W of `total` columns; valid until the next call."""
        self._written[...] = 0
        rows, width = mask.shape
        bias = self._flat[: rows * total].reshape(1, 1, rows, total)
        self._written = bias[0, 0, :, total - width :]
        self._written[...] = mask
        return bias


def _value(array: Array) -> Any:
    """An OrtValue over the array's own memory; it keeps the array alive."""
    if not array.flags.c_contiguous:
        raise ValueError(f"a bound array of shape {array.shape} is not contiguous")
    return ort.OrtValue.ortvalue_from_numpy(array)
