"""TensorRT's Python module: which one, found when it is needed, and what of it is used here.

`tensorrt` builds on the device that runs the engine; `tensorrt_rtx` builds for a GPU that need not be there. The two
have one interface as far as these protocols go. What must stay true: nothing of edgellm imports either of them before
`load_api` does, and what is missing is named.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, cast, get_args

from edgellm.errors import ConfigError

TensorRtTarget = Literal["tensorrt", "tensorrt-rtx"]
TENSORRT_TARGETS: Final[tuple[str, ...]] = get_args(TensorRtTarget)
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
_HELP: Final[dict[str, str]] = {
    "tensorrt": "JetPack brings it for the system's Python (a virtual environment needs --system-site-packages), or "
    "install edgellm[tensorrt]",
    "tensorrt-rtx": "install edgellm[tensorrt-rtx]",
}
_OLDEST: Final = {"tensorrt": (10, 13), "tensorrt-rtx": (1, 7)}

# TensorRT 10.13 fuses projections side by side into wrong results for one token on sm_110; these switches forbid it.
_SWITCHES: Final = "__LUNOWUD"
_NO_SIDE_BY_SIDE: Final = ("-peep:fc_h_fusion=off", "-peep:match_dual_gemm=off")

Dims = Sequence[int]


class Profile(Protocol):
    def set_shape(self, input: str, min: Dims, opt: Dims, max: Dims) -> None: ...


class Config(Protocol):
    profiling_verbosity: Any
    progress_monitor: Any
    num_compute_capabilities: int

    def clear_flag(self, flag: Any) -> None: ...
    def set_flag(self, flag: Any) -> None: ...
    def set_preview_feature(self, feature: Any, enable: bool) -> None: ...
    def set_compute_capability(self, capability: Any, index: int) -> bool: ...
    def add_optimization_profile(self, profile: Profile) -> int: ...
    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any: ...
    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool: ...
    def get_timing_cache(self) -> Any: ...


class Tensor(Protocol):
    name: str

    @property
    def shape(self) -> Dims: ...


class Layer(Protocol):
    name: str

    @property
    def num_inputs(self) -> int: ...
    def get_input(self, index: int) -> Tensor | None: ...
    def set_input(self, index: int, tensor: Tensor) -> None: ...
    def get_output(self, index: int) -> Tensor: ...


class Shuffle(Layer, Protocol):
    reshape_dims: Dims


class Network(Protocol):
    @property
    def num_layers(self) -> int: ...
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def get_layer(self, index: int) -> Layer: ...
    def get_input(self, index: int) -> Tensor: ...
    def get_output(self, index: int) -> Tensor: ...
    def add_input(self, name: str, dtype: Any, shape: Dims) -> Tensor: ...
    def add_shuffle(self, input: Tensor) -> Shuffle: ...
    def add_plugin(self, func: Any, aot: bool) -> Layer | None:
        """Of `tensorrt` only."""

    def mark_output(self, tensor: Tensor) -> None: ...
    def unmark_output(self, tensor: Tensor) -> None: ...
    def remove_tensor(self, tensor: Tensor) -> None: ...


class Context(Protocol):
    """IExecutionContext."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...
    def set_input_shape(self, name: str, shape: Dims) -> bool: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def set_device_memory(self, memory: int, size: int) -> None: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Engine(Protocol):
    """ICudaEngine."""

    @property
    def num_io_tensors(self) -> int: ...
    @property
    def num_optimization_profiles(self) -> int: ...
    def get_tensor_name(self, index: int) -> str: ...
    def get_tensor_mode(self, name: str) -> Any: ...
    def get_tensor_shape(self, name: str) -> Dims: ...
    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Sequence[Dims]: ...
    @property
    def device_memory_size_v2(self) -> int: ...
    def create_execution_context(self, strategy: Any) -> Context | None: ...
    def create_engine_inspector(self) -> Any: ...


class Runtime(Protocol):
    def deserialize_cuda_engine(self, serialized_engine: memoryview) -> Engine | None: ...


class Builder(Protocol):
    def create_network(self, flags: int) -> Network: ...
    def create_builder_config(self) -> Config: ...
    def create_optimization_profile(self) -> Profile: ...
    def build_serialized_network(self, network: Network, config: Config) -> Any:
        """A buffer, or None after an error that the logger was told."""


class ParserError(Protocol):
    def desc(self) -> str: ...
    def node_name(self) -> str: ...
    def node_operator(self) -> str: ...


class Parser(Protocol):
    @property
    def num_errors(self) -> int: ...
    def get_error(self, index: int) -> ParserError: ...
    def load_model_proto(self, model: bytes, path: str) -> bool: ...
    def load_initializer(self, name: str, data: int, size: int) -> bool: ...
    def parse_model_proto(self) -> bool: ...


class Api(Protocol):
    """The module."""

    __name__: str
    __version__: str
    Builder: Callable[[Any], Builder]
    OnnxParser: Callable[[Network, Any], Parser]
    Runtime: Callable[[Any], Runtime]
    Logger: Any
    ILogger: type[Any]
    IProgressMonitor: type[Any]
    BuilderFlag: Any
    ComputeCapability: Any
    DataType: Any
    TensorIOMode: Any
    ExecutionContextAllocationStrategy: Any
    LayerInformationFormat: Any
    NetworkDefinitionCreationFlag: Any
    PreviewFeature: Any
    ProfilingVerbosity: Any


def load_api(target: str) -> Api:
    """The module of `target`.

    Raises:
        ConfigError: it is not installed, or what it needs is not; the message says what.
    """
    failures = []
    for name in MODULES[target]:
        try:
            return cast(Api, importlib.import_module(name))
        except ModuleNotFoundError as error:
            failures.append(f"no module {error.name!r}")
        except (ImportError, OSError) as error:  # a library that it links to
            failures.append(f"{name} does not load: {error}")
    raise ConfigError(f"target {target} is not installed here ({'; '.join(failures)}): {_HELP[target]}")


def release(version: str) -> tuple[int, ...]:
    """(major, minor) of "10.13.3.9"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def check_capability(api: Api, capability: str) -> Any:
    """What the module calls a compute capability.

    Raises:
        ConfigError: it does not build for it.
    """
    known = getattr(api.ComputeCapability, capability, None)
    if known is None:
        names = [name for name in dir(api.ComputeCapability) if name.startswith("SM")]
        raise ConfigError(
            f"compute_capability: {api.__name__} {api.__version__} builds for {', '.join(names)}, not for {capability}"
        )
    return known


def check_release(api: Api, target: str, capability: str) -> None:
    """Refuse releases that are too old or known to compile wrong results.

    Raises:
        ConfigError: TensorRT is older than 10.13, whose parser is the first to take weights from memory; or it is
            10.13, would build for SM110, and its fusion of projections side by side is on.
    """
    if release(api.__version__) < _OLDEST[target]:
        oldest = ".".join(map(str, _OLDEST[target]))
        raise ConfigError(f"{api.__name__} {api.__version__} is too old: {oldest} or newer is needed")
    if target != "tensorrt" or capability != "SM110" or release(api.__version__) > (10, 13):
        return
    given = os.environ.get(_SWITCHES, "")
    if any(switch not in given for switch in _NO_SIDE_BY_SIDE):
        raise ConfigError(
            f"TensorRT {api.__version__} computes wrong projections of one token on sm_110: upgrade to 10.16 or newer "
            f"(JetPack 7.2), or put `side_by_side_fusion = false` into the recipe's [tensorrt]: it sets {_SWITCHES}=\""
            f'{" ".join(_NO_SIDE_BY_SIDE)}"'
        )


def disable_side_by_side_fusion() -> None:
    """Set the switches for all engines that this process builds from now on. Comes before `load_api`."""
    given = os.environ.get(_SWITCHES, "").split()
    os.environ[_SWITCHES] = " ".join([*given, *(switch for switch in _NO_SIDE_BY_SIDE if switch not in given)])
