"""Engines are found, given the profile for their shapes, and share one scratch memory; TensorRT is a stand-in."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgellm.engine.device.cuda import CudaBuffer
from edgellm.engine.trt.runtime import TensorRtEngines
from edgellm.errors import ConfigError, ExecutionError

F32 = np.dtype(np.float32)


@dataclass
class Context:
    engine: Engine
    calls: list[Any] = field(default_factory=list)
    works: bool = True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.calls.append(("profile", profile_index))
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        self.calls.append((name, shape))
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.calls.append((name, memory))
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        self.calls.append(("scratch", memory, size))

    def execute_async_v3(self, stream_handle: int) -> bool:
        self.calls.append(("run", stream_handle))
        return self.works


class Engine:
    """x [1, S, 8] and pool [4, 8] → y; profiles S = 1 and S = 2 … 16; 900 bytes of scratch."""

    num_io_tensors = 3
    num_optimization_profiles = 2

    def __init__(self) -> None:
        self.contexts: list[Context] = []

    def get_tensor_name(self, index: int) -> str:
        return ["x", "pool", "y"][index]

    def get_tensor_mode(self, name: str) -> str:
        return "out" if name == "y" else "in"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (4, 8) if name == "pool" else (1, -1, 8)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Any:
        return [((1, 1, 8), (1, 1, 8), (1, 1, 8)), ((1, 2, 8), (1, 16, 8), (1, 16, 8))][profile_index]

    device_memory_size_v2 = 900

    def create_execution_context(self, strategy: Any) -> Context:
        assert strategy == "user"
        self.contexts.append(Context(self))
        return self.contexts[-1]


@pytest.fixture
def loaded() -> list[Engine]:
    return []


@pytest.fixture
def engines(tmp_path: Path, loaded: list[Engine]) -> TensorRtEngines:
    (tmp_path / "head.engine").write_bytes(b"plan")
    (tmp_path / "old.engine").write_bytes(b"old")

    def deserialize(data: memoryview) -> Engine | None:
        if bytes(data) == b"old":
            return None
        loaded.append(Engine())
        return loaded[-1]

    api: Any = SimpleNamespace(
        __version__="10.16",
        Logger=type("Logger", (), {"WARNING": 1, "__init__": lambda self, severity: None}),
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=deserialize),
        TensorIOMode=SimpleNamespace(INPUT="in"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user"),
    )
    sizes: list[int] = []
    return TensorRtEngines(tmp_path, "tensorrt", lambda size: sizes.append(size) or 1000 * len(sizes), api=api)


def tensors(tokens: int) -> dict[str, CudaBuffer]:
    return {
        "x": CudaBuffer(256, (1, tokens, 8), F32),
        "pool": CudaBuffer(512, (7, 8), F32),  # larger than the engine's: a fixed shape is not set
        "y": CudaBuffer(768, (1, tokens, 8), F32),
    }


def test_shapes_choose_the_profile_and_scratch_is_shared(engines: TensorRtEngines, loaded: list[Engine]) -> None:
    one, many = engines.prepare("head", tensors(1), 7), engines.prepare("head", tensors(16), 7)
    again = engines.prepare("head", tensors(5), 7)
    assert len(loaded) == 1
    assert len(loaded[0].contexts) == 2
    for run in (one, many, again):
        run()
    calls = loaded[0].contexts[0].calls
    assert calls[0] == ("profile", 0)
    assert calls[1:] == [("x", (1, 1, 8)), ("x", 256), ("pool", 512), ("y", 768), ("scratch", 1000, 900), ("run", 7)]
    assert [call for call in loaded[0].contexts[1].calls if call[0] in ("profile", "run")] == [
        ("profile", 1),
        ("run", 7),
        ("run", 7),
    ]
    assert engines.used == 4


def test_what_is_missing_is_named(engines: TensorRtEngines) -> None:
    with pytest.raises(ConfigError, match=r"tail\.engine cannot be read: No such file"):
        engines.prepare("tail", tensors(1), 7)
    with pytest.raises(ConfigError, match=r"engine head has no profile for \{'x': \(1, 17, 8\)\}"):
        engines.prepare("head", tensors(17), 7)
    with pytest.raises(ConfigError, match="engine head: tensor 'pool' has no buffer"):
        engines.prepare("head", {name: buffer for name, buffer in tensors(1).items() if name != "pool"}, 7)
    with pytest.raises(ExecutionError, match=r"TensorRT 10.16 does not load it: rebuild it"):
        engines.prepare("old", tensors(1), 7)


def test_an_engine_that_does_not_run_is_named(engines: TensorRtEngines, loaded: list[Engine]) -> None:
    run = engines.prepare("head", tensors(1), 7)
    loaded[0].contexts[0].works = False
    with pytest.raises(ExecutionError, match="engine head could not be enqueued"):
        run()


def test_an_unaligned_buffer_is_refused(engines: TensorRtEngines) -> None:
    with pytest.raises(ConfigError, match="the buffer of 'x' is not aligned to 256 bytes"):
        engines.prepare("head", tensors(1) | {"x": CudaBuffer(384, (1, 1, 8), F32)}, 7)


def test_closing_frees_the_contexts(engines: TensorRtEngines, loaded: list[Engine]) -> None:
    run = engines.prepare("head", tensors(1), 7)
    freed = weakref.ref(loaded[0].contexts.pop())
    assert freed() is not None
    engines.close()
    assert freed() is None
    with pytest.raises(KeyError):
        run()
