"""A device of NumPy arrays: kernels are their references (or their CUDA sources on the CPU), engines ONNX Runtime.

It executes the same programs as a GPU, so that the executor above can be held token for token to the CPU executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from edgellm.engine.device.base import Array, Buffer, Copy, Launch, Operation, Program, Run
from edgellm.engine.ort_session import open_session
from edgellm.errors import ConfigError
from edgellm.kernels import emulate
from edgellm.kernels.source import definitions
from edgellm.kernels.spec import check_tensors


class EmulatedDevice:
    """See the module's docstring; the contract is `edgellm.engine.device.base.Device`.

    Args:
        folder: where the segments are, lowered for ONNX Runtime.
        sources: run the kernels' CUDA sources (needs g++) instead of their references.
        sessions: segments that are kept loaded, the last used ones; None: all.
    """

    def __init__(self, folder: Path, *, threads: int = 1, sources: bool = False, sessions: int | None = None) -> None:
        self._folder = folder
        self._sources = sources
        self._session = lru_cache(sessions)(lambda name: open_session(folder / f"{name}.onnx", threads))
        self._used = 0

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Buffer:
        made = np.zeros(tuple(shape), dtype)
        self._used += made.nbytes
        return cast(Buffer, made)  # NumPy arrays have the members of Buffer

    def clear(self, buffer: Buffer) -> None:
        _array(buffer)[...] = 0

    def upload(self, target: Buffer, values: Array) -> None:
        array = _array(target)
        if values.shape != array.shape or values.dtype != array.dtype:
            raise ValueError(f"upload of {values.dtype} {values.shape} into {array.dtype} {array.shape}")
        array[...] = values

    def download(self, source: Buffer) -> Array:
        return _array(source).copy()

    def copy(self, source: Buffer, target: Buffer) -> None:
        _array(target).reshape(-1)[...] = _array(source).reshape(-1)

    def program(self, operations: Sequence[Operation]) -> Program:
        for operation in operations:
            if isinstance(operation, Launch):
                definitions(operation.kernel, operation.sizes)
                check_tensors(operation.kernel, operation.sizes, _arrays(operation.tensors))
            elif isinstance(operation, Run) and not (self._folder / f"{operation.engine}.onnx").is_file():
                raise ConfigError(f"the bundle has no segment {operation.engine}")
        fixed = tuple(operations)

        def run() -> None:
            for operation in fixed:
                self._submit(operation)

        return run

    @property
    def used(self) -> int:
        return self._used

    @property
    def weights(self) -> int:
        return 0

    def close(self) -> None:
        self._session.cache_clear()

    def _submit(self, operation: Operation) -> None:
        match operation:
            case Launch(kernel, sizes, tensors):
                if self._sources:
                    emulate.run(kernel, sizes, _arrays(tensors))
                else:
                    kernel.reference(sizes, _arrays(tensors))
            case Run(engine, tensors):
                self._run(engine, _arrays(tensors))
            case Copy(source, target):
                self.copy(source, target)

    def _run(self, engine: str, arrays: dict[str, Array]) -> None:
        session = self._session(engine)
        inputs = {value.name: _as_f32(arrays[value.name]) for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        for name, made in zip(names, session.run(names, inputs), strict=True):
            arrays[name][...] = made.reshape(arrays[name].shape)


def _array(buffer: Buffer) -> Array:
    return cast(Array, buffer)


def _as_f32(array: Array) -> Array:
    """Activations of another width widened: the segments are in float32."""
    return array if array.dtype.kind in "iub" else array.astype(np.float32, copy=False)


def _arrays(tensors: Any) -> dict[str, Array]:
    return {name: _array(buffer) for name, buffer in tensors.items()}
