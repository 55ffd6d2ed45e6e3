"""The CUDA device over a driver on host memory: kernel sources, addresses and captured graphs as on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from host_driver import HostDriver, HostEngines, host_array
from kernel_parity import needs_compiler

from edgellm.engine.base import Chunk, DraftNodes, TokenTree
from edgellm.engine.device.base import Copy, Launch
from edgellm.engine.device.cuda import CudaBuffer, CudaDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.errors import ConfigError, ExecutionError
from edgellm.kernels.tree import TREE_BUILD


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


@pytest.fixture
def device(driver: HostDriver, exact: Any) -> CudaDevice:
    return CudaDevice(lambda _: HostEngines(exact.folder, driver), driver.binary, driver=driver)


@needs_compiler
def test_the_sources_and_graphs_answer_as_the_references(
    device: CudaDevice, driver: HostDriver, exact: Any, layout: Layout
) -> None:
    """A conversation step by step on both devices: prefill, trees, drafts, a restored prefix."""
    spec = exact.executor.model.spec
    made = DeviceExecutor(device, exact.folder, spec, layout, splits=2, fingerprint="emulated")
    both = (made, exact.executor)
    tokens = [int(token) for token in np.random.default_rng(4).integers(0, 1024, 64)]
    for executor in both:
        for slot in (0, 1):
            executor.reset(slot)

    def same(call: Any) -> None:
        found, expected = (call(executor) for executor in both)
        np.testing.assert_allclose(found, expected, atol=0.02)

    same(lambda e: e.advance([Chunk(0, tokens[:50], True)]).row(0))
    same(lambda e: e.advance([Chunk(0, tokens[50:53], True)]).row(0))
    same(lambda e: e.advance([Chunk(0, tokens[53:54], True)]).row(0))
    for round in range(3):
        same(lambda e: e.draft([DraftNodes(0, [5], [-1])])[0].logprobs)
        same(lambda e: e.draft([DraftNodes(0, [7, 8], [0, 0])])[0].logprobs)
        same(lambda e: e.verify(TokenTree(0, [5, 7, 8, 9], [-1, 0, 0, 2])).row(3))
        for executor in both:
            executor.commit(0, [0, 2, 3][: 1 + round])
    kept = [executor.snapshot(0) for executor in both]
    length = made.length(0)
    blocks = [[executor.publish(0, at, min(at + 32, length)) for at in range(0, length, 32)] for executor in both]
    for executor, refs, snapshot in zip(both, blocks, kept, strict=True):
        executor.restore(1, length, refs, snapshot)
    same(lambda e: e.advance([Chunk(1, [3, 4], True)]).row(0))
    assert driver.replays > len(driver.graphs) > 10
    for executor, refs, snapshot in zip(both, blocks, kept, strict=True):
        executor.free_snapshot(snapshot)
        for ref in refs:
            executor.free_block(ref)
    made.close()
    assert not driver.memory


def test_buffers_are_cut_as_arrays_are(device: CudaDevice) -> None:
    values = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    buffer = device.zeros(values.shape, np.float32)
    device.upload(buffer, values)
    assert isinstance(buffer, CudaBuffer)
    for cut, expected in [
        (buffer[1], values[1]),
        (buffer[2, 3], values[2, 3]),
        (buffer[1:], values[1:]),
        (buffer[1][:2], values[1][:2]),
        (buffer[:0], values[:0]),
        (buffer.reshape(6, -1)[5], values.reshape(6, -1)[5]),
    ]:
        np.testing.assert_array_equal(device.download(cut), expected)
    for wrong in (lambda: buffer[3], lambda: buffer[0, 4], lambda: buffer[-1]):
        with pytest.raises(IndexError):
            wrong()
    for refused in (lambda: buffer[::2], lambda: buffer.reshape(7, -1)):
        with pytest.raises(ValueError, match=r"step|become"):
            refused()


def test_a_program_is_recorded_once(device: CudaDevice, driver: HostDriver) -> None:
    source, target = (device.zeros((4,), np.int32) for _ in range(2))
    program = device.program([Copy(source, target)])
    for value in range(3):
        device.upload(source, np.full(4, value, np.int32))
        program()
        np.testing.assert_array_equal(device.download(target), value)
    assert (len(driver.graphs), driver.replays) == (1, 2)


def test_a_device_is_used_from_another_thread(device: CudaDevice, driver: HostDriver) -> None:
    source, target = (device.zeros((4,), np.int32) for _ in range(2))
    program = device.program([Copy(source, target)])

    def use() -> Any:
        device.upload(source, np.arange(4, dtype=np.int32))
        program()
        program()
        return device.download(target)

    with ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(use).result(), np.arange(4))
    device.close()
    assert not driver.memory


def test_a_capture_that_fails_is_ended(device: CudaDevice, driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = (device.zeros((4,), np.int32) for _ in range(2))
    program = device.program([Copy(source, target)])
    copy, calls = device.copy, []

    def fail_the_second_time(*buffers: Any) -> None:
        calls.append(buffers)
        if len(calls) == 2:
            raise RuntimeError("in the capture")
        copy(*buffers)

    monkeypatch.setattr(device, "copy", fail_the_second_time)
    with pytest.raises(RuntimeError, match="in the capture"):
        program()
    np.testing.assert_array_equal(device.download(target), 0)
    program()
    program()
    assert driver.replays == 1


def test_wrong_calls_are_named(device: CudaDevice, exact: Any) -> None:
    small = device.zeros((4,), np.int32)
    with pytest.raises(ValueError, match=r"upload of float32 \(4,\) into int32 \(4,\)"):
        device.upload(small, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="copy of 16 bytes into 8"):
        device.copy(small, small[:2])
    sizes = exact.executor.model.sizes(16, 16)
    with pytest.raises(ConfigError, match=r"tree_build: parents is int32 \(4,\), not \(16,\)"):
        device.program([Launch(TREE_BUILD, sizes, {param.name: small for param in TREE_BUILD.params})])


def test_too_little_memory_is_told_with_bytes(exact: Any) -> None:
    driver = HostDriver(capacity=1 << 20)
    device = CudaDevice(lambda _: HostEngines(exact.folder, driver), driver.binary, driver=driver)
    device.zeros((1000,), np.int32)
    with pytest.raises(ConfigError, match="no memory for 4000000 bytes more than the 4000 in use"):
        device.zeros((1000000,), np.int32)


def test_a_driver_error_is_named(device: CudaDevice, driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: (driver.CUresult(2),))
    with pytest.raises(ExecutionError, match="CUDA: CUDA_ERROR_OUT_OF_MEMORY"):
        device.download(device.zeros((1,), np.int32))


def test_host_arrays_are_the_devices_memory(device: CudaDevice) -> None:
    buffer = device.zeros((2, 3), np.float32)
    assert isinstance(buffer, CudaBuffer)
    host_array(buffer)[1] = 7
    np.testing.assert_array_equal(device.download(buffer[1]), [7, 7, 7])
