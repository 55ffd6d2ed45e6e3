"""A CUDA device: memory, one stream, kernels, engines, and programs as captured graphs.

Everything goes through `cuda.bindings.driver`, which is imported when a device is opened; a test gives a driver of its
own. What must stay true: one stream, so that submissions run in order; a program is run once before it is captured
(engines set themselves up on their first run), and then replayed.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from edgellm.engine.device.base import Array, Buffer, Copy, Launch, Operation, Program, Run
from edgellm.engine.device.gpu import checked, load_driver
from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, numpy_dtype

_STAGING: Final = 8 << 20  # bytes of pinned memory that uploads go through


@dataclass(frozen=True, slots=True)
class CudaBuffer:
    """See `base.Buffer`."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, key: int | slice | tuple[int, ...]) -> Self:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.shape[0])
            if step != 1:
                raise ValueError("a slice of a buffer has no step")
            row = self.nbytes // self.shape[0] if self.shape[0] else 0
            return type(self)(self.address + start * row, (max(0, stop - start), *self.shape[1:]), self.dtype)
        address, shape = self.address, self.shape
        for index in (key,) if isinstance(key, int) else key:
            if not 0 <= index < shape[0]:
                raise IndexError(f"index {index} of {shape[0]}")
            shape = shape[1:]
            address += index * math.prod(shape) * self.dtype.itemsize
        return type(self)(address, shape, self.dtype)

    def reshape(self, *shape: int) -> Self:
        known = math.prod(size for size in shape if size != -1)
        total = math.prod(self.shape)
        found = tuple(total // known if size == -1 else size for size in shape)
        if math.prod(found) != total:
            raise ValueError(f"{self.shape} cannot become {shape}")
        return type(self)(self.address, found, self.dtype)


class Engines(Protocol):
    """The engines of a bundle."""

    def prepare(self, name: str, tensors: dict[str, CudaBuffer], stream: int) -> Callable[[], None]:
        """What enqueues the engine `name` on `stream` with these tensors.

        Raises:
            ConfigError: there is no such engine, or it has no profile for these shapes.
        """
        ...

    @property
    def used(self) -> int:
        """Bytes of weights."""
        ...

    def close(self) -> None: ...


class CudaDevice:
    """See the module's docstring; the contract is `edgellm.engine.device.base.Device`.

    Args:
        engines: makes the engines, given what allocates device memory: bytes → address; closed with the device.
        binary: the cubin of a kernel for this GPU.
        driver: the module `cuda.bindings.driver` or something like it.

    Raises:
        ConfigError: there is no GPU or no driver.
    """

    def __init__(
        self,
        engines: Callable[[Callable[[int], int]], Engines],
        binary: Callable[[Kernel, Sizes], bytes],
        *,
        ordinal: int = 0,
        driver: Any = None,
    ) -> None:
        self._cuda: Any = load_driver() if driver is None else driver
        checked(self._cuda.cuInit(0))
        self._gpu = checked(self._cuda.cuDeviceGet(ordinal))
        self._context = checked(self._cuda.cuDevicePrimaryCtxRetain(self._gpu))
        self._current = threading.local()  # in threads whose current context is ours
        self._enter()
        self._stream = checked(self._cuda.cuStreamCreate(self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        self._staging = int(checked(self._cuda.cuMemHostAlloc(_STAGING, 0)))
        self._staged = 0  # bytes of it that the stream may still have to read
        self._closed = False
        self._events: tuple[Any, ...] = ()
        self._allocated: list[Any] = []
        self._modules: dict[tuple[Kernel, Sizes], Any] = {}
        self._graphs: list[Any] = []
        self._binary = binary
        self._used = 0
        self._engines = engines(lambda size: _cuda(self.zeros((size,), np.uint8)).address)

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Buffer:
        self._enter()
        found = np.dtype(dtype)
        size = math.prod(shape) * found.itemsize
        result = self._cuda.cuMemAlloc(max(size, 1))
        if result[0] == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise ConfigError(
                f"the device has no memory for {size} bytes more than the {self._used} in use: ask for fewer slots or "
                "a shorter context"
            )
        pointer = checked(result)
        self._allocated.append(pointer)
        self._used += size
        buffer = CudaBuffer(int(pointer), tuple(shape), found)
        self.clear(buffer)
        return buffer

    def clear(self, buffer: Buffer) -> None:
        self._enter()
        found = _cuda(buffer)
        if found.nbytes:
            checked(self._cuda.cuMemsetD8Async(found.address, 0, found.nbytes, self._stream))

    def upload(self, target: Buffer, values: Array) -> None:
        self._enter()
        found = _cuda(target)
        if values.shape != found.shape or values.dtype != found.dtype:
            raise ValueError(f"upload of {values.dtype} {values.shape} into {found.dtype} {found.shape}")
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _STAGING):
            part = data[start : start + _STAGING]
            source = self._stage(part)
            checked(self._cuda.cuMemcpyHtoDAsync(found.address + start, source, part.size, self._stream))

    def download(self, source: Buffer) -> Array:
        self._enter()
        found = _cuda(source)
        made = np.empty(found.shape, found.dtype)
        if made.nbytes:
            checked(self._cuda.cuMemcpyDtoHAsync(made.ctypes.data, found.address, made.nbytes, self._stream))
        checked(self._cuda.cuStreamSynchronize(self._stream))
        return made

    def copy(self, source: Buffer, target: Buffer) -> None:
        self._enter()
        here, there = _cuda(source), _cuda(target)
        if here.nbytes != there.nbytes:
            raise ValueError(f"copy of {here.nbytes} bytes into {there.nbytes}")
        if here.nbytes:
            checked(self._cuda.cuMemcpyDtoDAsync(there.address, here.address, here.nbytes, self._stream))

    def program(self, operations: Sequence[Operation]) -> Program:
        self._enter()
        steps = [self._prepare(operation) for operation in operations]

        def submit() -> None:
            for step in steps:
                step()

        recorded: list[Any] = []

        def run() -> None:
            self._enter()
            if recorded:
                checked(self._cuda.cuGraphLaunch(recorded[0], self._stream))
                return
            submit()
            recorded.append(self._capture(submit))

        return run

    def timed(self, submit: Callable[[], None]) -> float:
        """Milliseconds that the device works on what `submit` submits, from its own clock; waits for the end."""
        if not self._events:
            self._events = tuple(checked(self._cuda.cuEventCreate(0)) for _ in range(2))
        start, end = self._events
        checked(self._cuda.cuEventRecord(start, self._stream))
        submit()
        checked(self._cuda.cuEventRecord(end, self._stream))
        checked(self._cuda.cuEventSynchronize(end))
        return float(checked(self._cuda.cuEventElapsedTime(start, end)))

    @property
    def used(self) -> int:
        return self._used

    @property
    def weights(self) -> int:
        return self._engines.used

    @property
    def free(self) -> int:
        """Bytes that can be taken: of the GPU's memory, or where that is the system's, what the system can give."""
        self._enter()
        if checked(
            self._cuda.cuDeviceGetAttribute(self._cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_INTEGRATED, self._gpu)
        ):
            return int(psutil.virtual_memory().available)
        return int(checked(self._cuda.cuMemGetInfo())[0])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._enter()
        checked(self._cuda.cuStreamSynchronize(self._stream))
        for graph in self._graphs:
            checked(self._cuda.cuGraphExecDestroy(graph))
        self._engines.close()
        for module, _ in self._modules.values():
            checked(self._cuda.cuModuleUnload(module))
        for event in self._events:
            checked(self._cuda.cuEventDestroy(event))
        for pointer in self._allocated:
            checked(self._cuda.cuMemFree(pointer))
        self._graphs, self._modules, self._events, self._allocated = [], {}, (), []
        checked(self._cuda.cuMemFreeHost(self._staging))
        checked(self._cuda.cuStreamDestroy(self._stream))
        checked(self._cuda.cuDevicePrimaryCtxRelease(self._gpu))

    def _stage(self, data: NDArray[np.uint8]) -> int:
        """Address of a pinned copy, which stays as it is until the stream has read it: a copy from other memory may
        read it when the caller has changed it."""
        if self._staged + data.size > _STAGING:
            checked(self._cuda.cuStreamSynchronize(self._stream))
            self._staged = 0
        address = self._staging + self._staged
        ctypes.memmove(address, data.ctypes.data, data.size)
        self._staged += -(-data.size // 16) * 16
        return address

    def _enter(self) -> None:
        """Calls may come from another thread than the one that opened the device: each has a context of its own."""
        if not getattr(self._current, "ours", False):
            checked(self._cuda.cuCtxSetCurrent(self._context))
            self._current.ours = True

    def _capture(self, submit: Callable[[], None]) -> Any:
        cuda = self._cuda
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(cuda.cuStreamBeginCapture(self._stream, mode))
        try:
            submit()
        except BaseException:
            cuda.cuStreamEndCapture(self._stream)  # the capture is void: what it says does not matter
            raise
        graph = checked(cuda.cuStreamEndCapture(self._stream))
        executable = checked(cuda.cuGraphInstantiate(graph, 0))
        checked(cuda.cuGraphDestroy(graph))
        self._graphs.append(executable)
        return executable

    def _prepare(self, operation: Operation) -> Callable[[], None]:
        match operation:
            case Launch(kernel, sizes, tensors):
                return self._launch(kernel, sizes, {name: _cuda(buffer) for name, buffer in tensors.items()})
            case Run(engine, tensors):
                bound = {name: _cuda(buffer) for name, buffer in tensors.items()}
                return self._engines.prepare(engine, bound, int(self._stream))
            case Copy(source, target):
                return lambda: self.copy(source, target)

    def _launch(self, kernel: Kernel, sizes: Sizes, tensors: dict[str, CudaBuffer]) -> Callable[[], None]:
        for param in kernel.params:
            found, shape = tensors[param.name], param.shape(sizes)
            if found.shape != shape or found.dtype != numpy_dtype(param.dtype, sizes):
                raise ConfigError(f"{kernel.name}: {param.name} is {found.dtype} {found.shape}, not {shape}")
        function = self._function(kernel, sizes)
        values = np.array([tensors[param.name].address for param, _ in kernel.pointers], np.uint64)
        places = np.array([values.ctypes.data + 8 * at for at in range(len(values))], np.uint64)
        grid, threads = kernel.grid(sizes), kernel.threads(sizes)

        def run() -> None:
            launched = self._cuda.cuLaunchKernel(function, *grid, threads, 1, 1, 0, self._stream, places.ctypes.data, 0)
            checked(launched, kernel.name)

        run.__dict__["arguments"] = values  # alive as long as `places` points to them
        return run

    def _function(self, kernel: Kernel, sizes: Sizes) -> Any:
        key = kernel, sizes
        if key not in self._modules:
            module = checked(self._cuda.cuModuleLoadData(self._binary(kernel, sizes)), kernel.name)
            function = checked(self._cuda.cuModuleGetFunction(module, kernel.name.encode()), kernel.name)
            self._modules[key] = module, function
        return self._modules[key][1]


def _cuda(buffer: Buffer) -> CudaBuffer:
    assert isinstance(buffer, CudaBuffer)
    return buffer
