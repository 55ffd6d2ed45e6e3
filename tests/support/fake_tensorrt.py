"""NVIDIA's own tensorrt.plugin package, from its wheel, over a stand-in for the compiled module that it needs.

The package is pure Python: validation of plugins, symbolic shapes, and the objects that TensorRT calls. `build` calls
them as TensorRT's builder does. The wheels are not installed; `make test` downloads them to .cache/tensorrt.
"""

from __future__ import annotations

import enum
import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FOLDER = Path(os.environ.get("EDGELLM_TENSORRT_WHEELS") or Path(__file__).parents[2] / ".cache" / "tensorrt")
DataType = enum.Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4 E8M0")
DimensionOperation = enum.Enum("DimensionOperation", "SUM PROD MAX MIN SUB EQUAL LESS FLOOR_DIV CEIL_DIV")
TensorFormat = enum.Enum("TensorFormat", "LINEAR HWC")
_BASES = (
    "ITensor IPluginV3 IPluginV3QuickCore IPluginV3QuickBuild IPluginV3QuickAOTBuild IPluginV3QuickRuntime "
    "IPluginCreatorV3Quick ISymExpr"
)
_CODES = (
    "PluginFieldType.UNKNOWN PluginFieldType.CHAR PluginFieldType.INT8 PluginFieldType.INT16 PluginFieldType.INT32 "
    "PluginFieldType.INT64 PluginFieldType.FLOAT16 PluginFieldType.FLOAT32 PluginFieldType.FLOAT64 "
    "QuickPluginCreationRequest.STRICT_AOT QuickPluginCreationRequest.STRICT_JIT PluginArgDataType.INT32 "
    "PluginArgDataType.INT16 PluginArgDataType.INT8 PluginArgType.INT TensorRTPhase.BUILD Logger.WARNING"
)


def wheels() -> list[Path]:
    """What was downloaded, oldest release first."""
    return sorted(FOLDER.glob("tensorrt_cu13_bindings-*.whl"), key=lambda path: path.name)


class Dimension:
    """IDimensionExpr. Usable only while the builder that made it is in a callback, as TensorRT's are."""

    def __init__(self, value: int, owner: Expressions) -> None:
        self._value = value
        self._owner = owner

    def is_constant(self) -> bool:
        return self.get_constant_value() >= 0

    def get_constant_value(self) -> int:
        assert self._owner.open, "an expression of an earlier callback"
        return self._value

    def is_size_tensor(self) -> bool:
        return False


class Expressions:
    """IExprBuilder."""

    def __init__(self) -> None:
        self.open = True

    def constant(self, value: int) -> Dimension:
        assert self.open, "the builder of an earlier callback"
        return Dimension(value, self)

    def operation(self, operation: DimensionOperation, a: Dimension, b: Dimension) -> Dimension:
        assert self.open, "the builder of an earlier callback"
        if operation is not DimensionOperation.SUM:
            raise NotImplementedError(operation)
        return Dimension(a.get_constant_value() + b.get_constant_value(), self)


class Registry:
    """IPluginRegistry."""

    def __init__(self) -> None:
        self._creators: dict[tuple[str, str], Any] = {}

    def register_creator(self, creator: Any, namespace: str) -> None:
        assert (creator.name, namespace) not in self._creators
        self._creators[creator.name, namespace] = creator

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return self._creators[name, namespace]


class Dims(list[int]):
    MAX_DIMS = 8


class PluginTensorDesc(SimpleNamespace):
    pass


class DynamicPluginTensorDesc(SimpleNamespace):
    pass


def _compiled_module(version: str) -> ModuleType:
    module: Any = ModuleType("tensorrt")
    module.__version__ = version
    module.__path__ = []
    for known in (DataType, DimensionOperation, TensorFormat, Dims, PluginTensorDesc, DynamicPluginTensorDesc):
        setattr(module, known.__name__, known)
    for base in _BASES.split():
        setattr(module, base, type(base, (), {"__init__": lambda self: None}))
    for code in _CODES.split():
        group, member = code.split(".")
        if not hasattr(module, group):
            setattr(module, group, type(group, (), {"log": lambda self, *_: None}))
        setattr(getattr(module, group), member, code)
    registry = Registry()
    module.get_plugin_registry = lambda: registry
    module.IDimensionExpr, module.IExprBuilder = Dimension, Expressions
    module.PluginField, module.PluginFieldCollection = SimpleNamespace, list
    module.DimsExprs = lambda length: [None] * length
    module.float32, module.float16, module.int32 = DataType.FLOAT, DataType.HALF, DataType.INT32
    return module


@contextmanager
def loaded(wheel: Path, folder: Path) -> Iterator[Any]:
    """The module `tensorrt` of a wheel, unpacked to `folder`; importable inside the context."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/plugin/" in name])
    module = _compiled_module(wheel.name.split("-")[1])
    module.__path__ = [str(folder / "tensorrt_bindings")]

    def others() -> list[str]:
        return [name for name in sys.modules if name == "tensorrt" or name.startswith("tensorrt.")]

    before = {name: sys.modules.pop(name) for name in others()}
    sys.modules["tensorrt"] = module
    try:
        module.plugin = importlib.import_module("tensorrt.plugin")
        yield module
    finally:
        for name in others():
            del sys.modules[name]
        sys.modules.update(before)


@dataclass(frozen=True)
class Tensor:
    """Shape, a -1 for what is not known, and type."""

    shape: tuple[int, ...]
    dtype: DataType


@dataclass(frozen=True)
class Layer:
    """What TensorRT puts into an engine for a plugin."""

    outputs: list[Tensor]
    aliased: list[int]  # input of each output, -1: none
    kernel: str
    ptx: bytes
    launch: dict[str, int]
    extra: int


def build(tensorrt: Any, made: Callable[..., Any], inputs: Sequence[Tensor]) -> Layer:
    """Everything that TensorRT's builder asks a plugin, in its order."""
    create = made(*(tensorrt.ITensor() for _ in inputs))
    _, _, plugin = create(tensorrt.QuickPluginCreationRequest.STRICT_AOT)
    types = plugin.get_output_data_types([tensor.dtype for tensor in inputs], [len(tensor.shape) for tensor in inputs])
    builder = Expressions()
    dims = [[Dimension(size, builder) for size in tensor.shape] for tensor in inputs]
    shapes = [tuple(dim.get_constant_value() for dim in shape) for shape in plugin.get_output_shapes(dims, [], builder)]
    builder.open = False
    outputs = [Tensor(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
    assert plugin.get_num_outputs() == len(outputs)
    described = [_description(tensor) for tensor in (*inputs, *outputs)]
    combination = plugin.get_supported_format_combinations(described, len(inputs))
    assert [one.type for one in combination] == [one.desc.type for one in described]
    plugin = plugin.clone()
    plugin.configure_plugin(described[: len(inputs)], described[len(inputs) :])
    assert plugin.get_valid_tactics() == []
    plugin.set_tactic(0)
    launch, extra, builder = SimpleNamespace(), _Extra(), Expressions()
    plugin.get_launch_params(dims, described, len(inputs), launch, extra, builder)
    sizes = {name: value.expr.get_constant_value() for name, value in vars(launch).items()}
    builder.open = False
    kernel, ptx = plugin.get_kernel(
        [one.desc for one in described[: len(inputs)]], [one.desc for one in described[len(inputs) :]]
    )
    aliased = [plugin.get_aliased_input(i) for i in range(len(outputs))]
    return Layer(outputs, aliased, kernel, ptx, sizes, extra.nbSymExprs)


class _Extra(dict[int, Any]):
    nbSymExprs: int


def _description(tensor: Tensor) -> DynamicPluginTensorDesc:
    desc = PluginTensorDesc(dims=Dims(tensor.shape), type=tensor.dtype, format=TensorFormat.LINEAR, scale=1.0)
    return DynamicPluginTensorDesc(desc=desc)
