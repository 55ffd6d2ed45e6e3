"""A CUDA driver and an engine runtime on host memory, to run `CudaDevice` without a GPU.

Kernels are their CUDA sources on the CPU, engines ONNX Runtime sessions over the same addresses. Calls made while a
stream is captured are not executed but recorded, as on a GPU.
"""

from __future__ import annotations

import ctypes
import enum
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.device.cuda import CudaBuffer
from edgellm.engine.ort_session import open_session
from edgellm.kernels import emulate
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class HostDriver:
    """What of `cuda.bindings.driver` a device uses."""

    CUresult = CUresult
    CUstream_flags = enum.IntEnum("CUstream_flags", {"CU_STREAM_NON_BLOCKING": 1})
    CUdevice_attribute = enum.IntEnum(
        "CUdevice_attribute",
        {
            f"CU_DEVICE_ATTRIBUTE_{name}": at
            for at, name in enumerate(
                (
                    "COMPUTE_CAPABILITY_MAJOR",
                    "COMPUTE_CAPABILITY_MINOR",
                    "MULTIPROCESSOR_COUNT",
                    "L2_CACHE_SIZE",
                    "CLOCK_RATE",
                    "MEMORY_CLOCK_RATE",
                    "GLOBAL_MEMORY_BUS_WIDTH",
                    "INTEGRATED",
                )
            )
        },
    )
    CUstreamCaptureMode = enum.IntEnum("CUstreamCaptureMode", {"CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1})

    def __init__(self, capacity: int = 1 << 31) -> None:
        self.capacity = capacity
        self.attributes = (9, 0, 2, 1 << 15, 0, 0, 0, 0)  # as in CUdevice_attribute
        self.events: dict[int, float] = {}
        self.memory: dict[int, NDArray[np.uint8]] = {}
        self.binaries: dict[bytes, tuple[Kernel, Sizes]] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.replays = 0
        self.executed = 0  # operations that a capture can hold
        self.current = threading.local()
        self.pinned: dict[int, NDArray[np.uint8]] = {}
        self._uploads: list[Callable[[], None]] = []  # that the stream has not got to
        self._recording: list[Callable[[], None]] | None = None

    def binary(self, kernel: Kernel, sizes: Sizes) -> bytes:
        """A stand-in for a cubin."""
        key = repr((kernel.name, sizes)).encode()
        self.binaries[key] = kernel, sizes
        return key

    def submit(self, action: Callable[[], None]) -> None:
        """Do it, or record it."""
        if self._recording is None:
            self._catch_up()
            self.executed += 1
            action()
        else:
            self._recording.append(action)

    def cuInit(self, flags: int) -> tuple[CUresult]:
        return (CUresult(flags),)

    def cuDeviceGet(self, ordinal: int) -> tuple[CUresult, int]:
        return CUresult(0), ordinal

    def cuDeviceGetName(self, length: int, device: int) -> tuple[CUresult, bytes]:
        return CUresult(0), b"host memory, no GPU" + bytes(length - 19)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[CUresult, int]:
        return CUresult(0), self.attributes[attribute]

    def cuDeviceTotalMem(self, device: int) -> tuple[CUresult, int]:
        return CUresult(0), self.capacity

    def cuDriverGetVersion(self) -> tuple[CUresult, int]:
        return CUresult(0), 13000

    def cuEventCreate(self, flags: int) -> tuple[CUresult, int]:
        event = max(self.events, default=0) + 1
        self.events[event] = 0.0
        return CUresult(0), event

    def cuEventDestroy(self, event: int) -> tuple[CUresult]:
        del self.events[event]
        return (CUresult(0),)

    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:
        self.events[event] = time.perf_counter()
        return (CUresult(0),)

    def cuEventSynchronize(self, event: int) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[CUresult, float]:
        return CUresult(0), 1000 * (self.events[end] - self.events[start])

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, int]:
        return CUresult(0), 1

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuCtxSetCurrent(self, context: int) -> tuple[CUresult]:
        self.current.context = context
        return (CUresult(0),)

    def check_current(self) -> None:
        """Calls need the calling thread's current context."""
        assert getattr(self.current, "context", None), "no context is current in this thread"

    def cuStreamCreate(self, flags: int) -> tuple[CUresult, int]:
        return CUresult(0), 7

    def cuStreamDestroy(self, stream: int) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        self.check_current()
        self._catch_up()
        assert self._recording is None, "a synchronization ends a capture"
        return (CUresult(0),)

    def cuMemAlloc(self, size: int) -> tuple[CUresult, int | None]:
        self.check_current()
        if sum(len(held) for held in self.memory.values()) + size > self.capacity:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        held = np.full(size + 256, 0xA5, np.uint8)
        address = held.ctypes.data + -held.ctypes.data % 256
        self.memory[address] = held
        return CUresult(0), address

    def cuMemFree(self, address: int) -> tuple[CUresult]:
        self.check_current()
        del self.memory[address]
        return (CUresult(0),)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> tuple[CUresult]:
        self.check_current()
        self.submit(lambda: ctypes.memset(address, value, size) and None)
        return (CUresult(0),)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[CUresult]:
        """Reads pinned memory when the stream gets to it, which is as late as may be here."""
        self.check_current()
        assert self._recording is None, "what is uploaded must not be part of a graph"
        assert any(at <= source < at + len(held) for at, held in self.pinned.items()), "the source is not pinned"
        self._uploads.append(lambda: ctypes.memmove(target, source, size) and None)
        return (CUresult(0),)

    def _catch_up(self) -> None:
        for upload in self._uploads:
            upload()
        self._uploads.clear()

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[CUresult, int]:
        held = np.zeros(size, np.uint8)
        self.pinned[held.ctypes.data] = held
        return CUresult(0), held.ctypes.data

    def cuMemFreeHost(self, address: int) -> tuple[CUresult]:
        del self.pinned[address]
        return (CUresult(0),)

    def cuMemGetInfo(self) -> tuple[CUresult, int, int]:
        return CUresult(0), self.capacity - sum(len(held) for held in self.memory.values()), self.capacity

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[CUresult]:
        self.check_current()
        self._catch_up()
        assert self._recording is None
        ctypes.memmove(target, source, size)
        return (CUresult(0),)

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[CUresult]:
        self.check_current()
        self.submit(lambda: ctypes.memmove(target, source, size) and None)
        return (CUresult(0),)

    def cuModuleLoadData(self, binary: bytes) -> tuple[CUresult, tuple[Kernel, Sizes]]:
        return CUresult(0), self.binaries[binary]

    def cuModuleGetFunction(self, module: tuple[Kernel, Sizes], name: bytes) -> tuple[CUresult, tuple[Kernel, Sizes]]:
        assert module[0].name.encode() == name
        return CUresult(0), module

    def cuModuleUnload(self, module: tuple[Kernel, Sizes]) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuLaunchKernel(self, function: tuple[Kernel, Sizes], *rest: int) -> tuple[CUresult]:
        self.check_current()
        kernel, sizes = function
        *dims, shared, _, arguments, extra = rest
        assert (tuple(dims), shared, extra) == ((*kernel.grid(sizes), kernel.threads(sizes), 1, 1), 0, 0)
        # A driver reads the values of the parameters when the kernel is submitted or captured.
        count = len(kernel.pointers)
        values = [ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(arguments + 8 * at).value).value
                  for at in range(count)]  # fmt: skip

        def execute() -> None:
            held = np.array(values, np.uint64)
            places = np.array([held.ctypes.data + 8 * at for at in range(count)], np.uint64)
            emulate.launch(kernel, sizes, places.ctypes.data)

        self.submit(execute)
        return (CUresult(0),)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[CUresult]:
        self.check_current()
        assert self._recording is None
        self._recording = []
        return (CUresult(0),)

    def cuStreamEndCapture(self, stream: int) -> tuple[CUresult, int]:
        assert self._recording is not None
        number = len(self.graphs) + 1
        self.graphs[number], self._recording = self._recording, None
        return CUresult(0), number

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[CUresult, int]:
        return CUresult(0), graph

    def cuGraphDestroy(self, graph: int) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuGraphExecDestroy(self, graph: int) -> tuple[CUresult]:
        return (CUresult(0),)

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[CUresult]:
        self.check_current()
        self._catch_up()
        self.replays += 1
        for action in self.graphs[graph]:
            action()
        return (CUresult(0),)


class HostEngines:
    """Segments for ONNX Runtime in place of engines; see `edgellm.engine.device.cuda.Engines`."""

    used = 0

    def __init__(self, folder: Path, driver: HostDriver) -> None:
        self._folder, self._driver = folder, driver
        self._sessions: dict[str, Any] = {}

    def prepare(self, name: str, tensors: dict[str, CudaBuffer], stream: int) -> Callable[[], None]:
        if name not in self._sessions:
            self._sessions[name] = open_session(self._folder / f"{name}.onnx", 1)
        session = self._sessions[name]

        def execute() -> None:
            arrays = {key: host_array(buffer) for key, buffer in tensors.items()}
            made = [value.name for value in session.get_outputs()]
            inputs = {value.name: arrays[value.name] for value in session.get_inputs()}
            for key, values in zip(made, session.run(made, inputs), strict=True):
                arrays[key][...] = values.reshape(arrays[key].shape)

        return lambda: self._driver.submit(execute)

    def close(self) -> None:
        self._sessions.clear()


def host_array(buffer: CudaBuffer) -> NDArray[Any]:
    """The buffer's memory as an array."""
    memory = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
    return np.frombuffer(memory, buffer.dtype).reshape(buffer.shape)
