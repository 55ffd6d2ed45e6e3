"""Runs a bundle's engines: deserialized once, one execution context for every profile that is used, one scratch memory.

What must stay true: engines run one after another on one stream, which is why all contexts share their scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from edgellm.engine.device.cuda import CudaBuffer
from edgellm.engine.trt.api import Api, Context, Engine, load_api
from edgellm.errors import ConfigError, ExecutionError

_ALIGNMENT: Final = 256  # of the addresses of tensors


class TensorRtEngines:
    """See `edgellm.engine.device.cuda.Engines`.

    Args:
        folder: where the engines are.
        target: of the bundle, "tensorrt" or "tensorrt-rtx".
        allocate: bytes → address of device memory, for the scratch memory; freed by its owner.
    """

    def __init__(self, folder: Path, target: str, allocate: Callable[[int], int], *, api: Api | None = None) -> None:
        self._api = load_api(target) if api is None else api
        self._folder, self._allocate = folder, allocate
        self._logger = self._api.Logger(self._api.Logger.WARNING)
        self._runtime = self._api.Runtime(self._logger)
        self._engines: dict[str, Engine] = {}
        self._contexts: dict[tuple[str, int], Context] = {}
        self._scratch, self._scratch_bytes = 0, 0
        self._used = 0

    def prepare(self, name: str, tensors: Mapping[str, CudaBuffer], stream: int) -> Callable[[], None]:
        """See `Engines.prepare`."""
        engine = self._engine(name)
        mode = self._api.TensorIOMode.INPUT
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        if missing := [tensor for tensor in names if tensor not in tensors]:
            raise ConfigError(f"engine {name}: tensor {missing[0]!r} has no buffer")
        inputs = [tensor for tensor in names if engine.get_tensor_mode(tensor) == mode]
        shaped = [tensor for tensor in inputs if -1 in tuple(engine.get_tensor_shape(tensor))]
        profile = self._profile(name, engine, {tensor: tensors[tensor].shape for tensor in shaped})
        key = self._context(name, engine, profile, stream)
        for tensor in shaped:
            if not self._contexts[key].set_input_shape(tensor, tensors[tensor].shape):
                raise ConfigError(f"engine {name} does not take {tensor} {tensors[tensor].shape}")
        bound = [(tensor, tensors[tensor].address) for tensor in names]
        if odd := [tensor for tensor, address in bound if address % _ALIGNMENT]:
            raise ConfigError(f"engine {name}: the buffer of {odd[0]!r} is not aligned to {_ALIGNMENT} bytes")

        def run() -> None:
            context = self._contexts[key]  # looked up, so that closing frees it
            for tensor, address in bound:
                if not context.set_tensor_address(tensor, address):
                    raise ExecutionError(f"engine {name} does not take the address of {tensor}")
            context.set_device_memory(self._scratch, self._scratch_bytes)
            if not context.execute_async_v3(stream):
                raise ExecutionError(f"engine {name} could not be enqueued")

        return run

    @property
    def used(self) -> int:
        """Bytes of weights."""
        return self._used

    def close(self) -> None:
        self._contexts.clear()
        self._engines.clear()

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            path = self._folder / f"{name}.engine"
            try:
                data = np.memmap(path, np.uint8, "r")  # its pages need not stay in memory
            except OSError as error:
                raise ConfigError(f"engine {path} cannot be read: {error.strerror}") from error
            engine = self._runtime.deserialize_cuda_engine(data.data)
            if engine is None:
                raise ExecutionError(f"engine {path}: TensorRT {self._api.__version__} does not load it: rebuild it")
            self._engines[name] = engine
            self._used += data.size
        return self._engines[name]

    def _profile(self, name: str, engine: Engine, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """The profile whose ranges the input shapes are in."""

        def fits(profile: int) -> bool:
            for tensor, shape in shapes.items():
                least, _, most = engine.get_tensor_profile_shape(tensor, profile)
                if len(shape) != len(tuple(least)):
                    return False
                if not all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True)):
                    return False
            return True

        for profile in range(engine.num_optimization_profiles):
            if fits(profile):
                return profile
        raise ConfigError(f"engine {name} has no profile for {dict(shapes)}")

    def _context(self, name: str, engine: Engine, profile: int, stream: int) -> tuple[str, int]:
        key = name, profile
        if key not in self._contexts:
            strategy = self._api.ExecutionContextAllocationStrategy.USER_MANAGED
            context = engine.create_execution_context(strategy)
            if context is None or not context.set_optimization_profile_async(profile, stream):
                raise ExecutionError(f"engine {name}: no execution context for profile {profile}")
            needed = int(engine.device_memory_size_v2)
            if needed > self._scratch_bytes:
                self._scratch, self._scratch_bytes = self._allocate(needed), needed
            self._contexts[key] = context
        return key
