"""The engine of the plugin form: a step over a tree with its kernels inside, as PTX in the engine.

The rest of such a bundle is that of the split form: a plugin is one kernel for one number of rows, so one engine cannot
take both trees and prefill chunks, and the decoder's weights are held twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.stitch import Network
from edgellm.engine.device.symbolic import SymbolicDevice
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.engine.trt.api import Api
from edgellm.engine.trt.compiler import Compiler
from edgellm.engine.trt.layer_list import LayerList
from edgellm.engine.trt.plugin_network import Plugin, connect, write_side_by_side
from edgellm.kernels import nvrtc, plugins
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import digest
from edgellm.kernels.spec import Kernel

PLUGIN_ENGINE: Final = "verify"


def planned_step(folder: Path, spec: ModelSpec, layout: Layout, splits: int) -> Network:
    """What the executor of `layout` runs for a tree; `folder` has the kernels' weights."""
    executor = DeviceExecutor(SymbolicDevice(), folder, spec, layout, splits=splits, fingerprint="")
    memory = executor.decoder.memory[0]
    return executor.decoder.trees[layout.nodes].network(memory, *memory.capsules)


def compile_plugins(
    compiler: Compiler, api: Api, step: Network, scratch: Path, out: Path, arch: str
) -> tuple[LayerList, dict[str, str]]:
    """Build the engine of `step` from the segments in `scratch`.

    Returns:
        its layers, and plugin → hash of source, sizes and architecture.

    Raises:
        ConfigError: NVRTC is missing, or this TensorRT has no such plugins.
        ExecutionError: TensorRT failed.
    """
    hashes: dict[str, str] = {}
    tokens = step.outputs["head.logits"].shape[0]

    def plugin(kernel: Kernel, sizes: Sizes) -> Plugin:
        ptx = nvrtc.compile_kernel(kernel, sizes, arch, "ptx").binary
        hashes[plugins.plugin_name(kernel, sizes)] = digest(kernel, sizes, arch)
        return plugins.register(kernel, sizes, api, ptx)

    def put(network: Any) -> None:
        connect(network, api, step, plugin)

    graph = write_side_by_side(scratch, step, tokens)
    return compiler.compile(graph, out, [], put), hashes
