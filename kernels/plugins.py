"""Registers kernels with TensorRT as "quickly deployable" plugins whose PTX it puts into the engine (AOT).

An engine with such plugins runs without Python, this library or a compiler. The interface is NVIDIA's pure-Python
package tensorrt.plugin (10.13 and newer). It takes the shape of a plugin from functions with named and annotated
arguments; these get theirs as a `__signature__`, made from the kernel's description.

What must stay true: a plugin is one kernel for one `Sizes`, so its name holds a digest of them, and tensors of other
shapes or types are refused when the network is built; its arguments are `Kernel.pointers`: inputs, then outputs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, Final, Protocol

from edgellm.errors import ConfigError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import digest
from edgellm.kernels.spec import Kernel, Param

NAMESPACE: Final = "edgellm"


class TensorRt(Protocol):
    """What is used of the module `tensorrt`."""

    __name__: str
    DataType: Any


def plugin_name(kernel: Kernel, sizes: Sizes) -> str:
    """Name of the plugin in `NAMESPACE`: equal where source, macros, shapes and launch are."""
    shapes = [param.shape(sizes) for param in kernel.params]
    return f"{kernel.name}_{digest(kernel, sizes, str((shapes, kernel.grid(sizes), kernel.threads(sizes))))[:12]}"


def register(kernel: Kernel, sizes: Sizes, tensorrt: TensorRt, ptx: bytes) -> Callable[..., Any]:
    """Make a plugin of `kernel` known to TensorRT; a second time it is found again.

    Args:
        tensorrt: the imported module.
        ptx: of the kernel for these sizes, see `nvrtc.compile_kernel`.

    Returns:
        What ``network.add_plugin(made(*inputs), aot=True)`` takes, with a tensor for every in and inout parameter; the
        layer's outputs are those of `Kernel.pointers`. Inout parameters need the preview feature
        ALIASED_PLUGIN_IO_10_03 in the builder's configuration.

    Raises:
        ConfigError: TensorRT cannot launch this kernel, or the kernel cannot be compiled for these sizes.
    """
    if not kernel.plugin:
        raise ConfigError(f"kernel {kernel.name} is launched by the runtime, it is no plugin")
    plugin = importlib.import_module(f"{tensorrt.__name__}.plugin")
    name = plugin_name(kernel, sizes)
    known: Callable[..., Any] | None = getattr(getattr(plugin.op, NAMESPACE, None), name, None)
    if known is not None:
        return known
    shape = _Shape(kernel, sizes, tensorrt, plugin)
    identity = f"{NAMESPACE}::{name}"
    plugin.register(identity)(shape.describe())
    plugin.aot_impl(identity)(shape.launch(ptx.decode()))
    made: Callable[..., Any] = getattr(getattr(plugin.op, NAMESPACE), name)
    return made


class _Shape:
    """The functions that TensorRT asks for one kernel."""

    def __init__(self, kernel: Kernel, sizes: Sizes, tensorrt: TensorRt, plugin: Any) -> None:
        self._kernel = kernel
        self._sizes = sizes
        self._plugin = plugin
        types = tensorrt.DataType
        known = {"bf16": types.BF16, "f16": types.HALF, "f32": types.FLOAT, "i32": types.INT32, "e4m3": types.FP8}
        self._types = {**known, "io": known[sizes.io]}
        self._inputs = [param for param, writable in kernel.pointers if not writable]
        self._outputs = [param for param, writable in kernel.pointers if writable]

    def describe(self) -> Callable[..., Any]:
        """(input descriptors) → output descriptors"""

        def outputs(*tensors: Any) -> tuple[Any, ...]:
            given = dict(zip((param.name for param in self._inputs), tensors, strict=True))
            for param in self._inputs:
                self._check(param, given[param.name])
            return tuple(
                given[param.name].aliased() if param.role == "inout" else self._made(param, tensors[0])
                for param in self._outputs
            )

        returned = GenericAlias(tuple, (self._plugin.TensorDesc,) * len(self._outputs))
        return self._signed(outputs, [param.name for param in self._inputs], returned)

    def launch(self, ptx: str) -> Callable[..., Any]:
        """(input descriptors, output descriptors, tactic) → kernel, PTX, how to launch it, further arguments"""
        kernel, sizes, plugin = self._kernel, self._sizes, self._plugin

        def launched(*_: Any) -> tuple[str, str, Any, Any]:
            x, y, z = kernel.grid(sizes)
            launch = plugin.KernelLaunchParams(grid_x=x, grid_y=y, grid_z=z, block_x=kernel.threads(sizes))
            return kernel.name, ptx, launch, plugin.SymIntExprs(0)

        returned = GenericAlias(tuple, (str, str, plugin.KernelLaunchParams, plugin.SymIntExprs))
        outputs = GenericAlias(tuple, (plugin.TensorDesc,))
        names = [param.name for param in self._inputs]
        return self._signed(launched, names, returned, outputs=outputs, tactic=int)

    def _signed(
        self, function: Callable[..., Any], inputs: Sequence[str], returned: Any, **more: Any
    ) -> Callable[..., Any]:
        annotations = {**dict.fromkeys(inputs, self._plugin.TensorDesc), **more}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in annotations.items()]
        vars(function)["__signature__"] = inspect.Signature(named, return_annotation=returned)
        return function

    def _made(self, param: Param, some: Any) -> Any:
        """The descriptor of a new tensor."""
        if some.shape_expr[0].is_fake:  # only types are asked for; constants would need a builder of expressions
            made = some.like()
            made.dtype = self._types[param.dtype]
            return made
        return self._plugin.from_shape_expr(param.shape(self._sizes), self._types[param.dtype])

    def _check(self, param: Param, tensor: Any) -> None:
        shape, dtype = param.shape(self._sizes), self._types[param.dtype]
        dims = list(tensor.shape_expr)
        where = f"plugin {self._kernel.name}: {param.name}"
        if tensor.dtype != dtype:
            raise ConfigError(f"{where} is {tensor.dtype}, not {dtype}")
        if len(dims) != len(shape):
            raise ConfigError(f"{where} has rank {len(dims)}, not that of {shape}")
        if dims[0].is_fake:
            return
        found = tuple(dim.constant_value() if dim.is_constant else -1 for dim in dims)
        if found != shape:
            raise ConfigError(f"{where} has shape {found}, it is made for {shape}")
