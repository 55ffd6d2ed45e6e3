"""The split form: an engine for every segment of the model, and binaries of the kernels that run between them.

What must stay true: a bundle in this form runs without a compiler for the context, slots and tree of its recipe;
kernels for other sizes are compiled when it is opened, if NVRTC is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.exercise import exercise
from edgellm.engine.device.memory import DRAFT_TAIL, WAITING, Layout
from edgellm.engine.device.symbolic import SymbolicDevice
from edgellm.engine.recipe import Recipe
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.engine.trt.profiles import Sizes, point
from edgellm.errors import ConfigError
from edgellm.graph.segments import MTP_IN, MTP_OUT
from edgellm.kernels import nvrtc
from edgellm.kernels import sizes as kernel_sizes
from edgellm.kernels.source import binary_name, digest
from edgellm.kernels.spec import Kernel
from edgellm.progress import Progress

KERNELS: Final = "kernels"  # folder of a bundle


def segment_profiles(graph: Path, tokens: tuple[int, ...], chunk: int) -> list[Sizes]:
    """Optimization profiles of a segment: steps of `tokens` tokens that are all scored, and a prefill chunk whose last
    one is."""
    trees: list[Sizes] = [{"S": point(count), "R": point(count)} for count in tokens]
    prefill: Sizes = {"S": point(chunk), "R": point(1)}
    if graph.stem == MTP_OUT:
        return trees  # of a prompt only keys and values are wanted
    if graph.stem == MTP_IN:
        pool = point(WAITING + DRAFT_TAIL)
        return [*({**sizes, "T": pool} for sizes in trees), {**prefill, "T": point(chunk + 1)}]
    return [*trees, prefill]


def device_layout(recipe: Recipe, spec: ModelSpec, context: int, *, slots: int = 1, spare: int = 0) -> Layout:
    """What an executor's buffers are made for; `spare` pages can be published beside those of the slots.

    `recipe` is one of the split or the plugin form.
    """
    assert recipe.tensorrt is not None
    max_pages = -(-context // recipe.block_tokens)
    return Layout(
        io=recipe.tensorrt.activations,
        slots=slots,
        page=recipe.block_tokens,
        pages=slots * max_pages + spare,
        max_pages=max_pages,
        snapshots=1,
        nodes=recipe.tree_nodes,
        chunk=recipe.prefill_chunk,
        mtp=spec.mtp_layers > 0 and recipe.tree_nodes > 1,
    )


def gpu_arch(capability: str) -> str:
    """NVRTC's name of a compute capability: "sm_110a" of "SM110"; below 9.0 there are no features of one chip alone."""
    number = int(capability.removeprefix("SM"))
    return f"sm_{number}{'a' if number >= 90 else ''}"


def write_kernels(
    folder: Path,
    spec: ModelSpec,
    layout: Layout,
    splits: int,
    arch: str,
    engine: str | None,
    progress: Progress | None,
) -> dict[str, str]:
    """Compile what an executor of `layout` launches into `folder`, where the kernels' weights are.

    Args:
        engine: that has the kernels of a tree's step, see `DeviceExecutor`.

    Returns:
        file → hash of source, sizes and architecture, for the manifest.

    Raises:
        ConfigError: NVRTC is missing, or a kernel cannot be compiled for these sizes.
    """
    device = SymbolicDevice()
    executor = DeviceExecutor(device, folder, spec, layout, splits=splits, fingerprint="", engine=engine)
    exercise(executor)
    wanted = {binary_name(kernel, sizes, arch): (kernel, sizes) for kernel, sizes in device.launches()}
    (folder / KERNELS).mkdir()
    for done, (name, (kernel, sizes)) in enumerate(wanted.items()):
        if progress is not None:
            progress("kernels", done, len(wanted))
        (folder / KERNELS / name).write_bytes(nvrtc.compile_kernel(kernel, sizes, arch).binary)
    return {name: digest(kernel, sizes, arch) for name, (kernel, sizes) in wanted.items()}


def kernel_binaries(folder: Path, arch: str) -> Callable[[Kernel, kernel_sizes.Sizes], bytes]:
    """What finds the binary of a kernel in a bundle, or else compiles it."""

    def find(kernel: Kernel, sizes: kernel_sizes.Sizes) -> bytes:
        path = folder / KERNELS / binary_name(kernel, sizes, arch)
        if path.is_file():
            return path.read_bytes()
        try:
            return nvrtc.compile_kernel(kernel, sizes, arch).binary
        except ConfigError as error:
            raise ConfigError(
                f"{folder} has no {kernel.name} for these slots and this context, and it cannot be compiled: {error}"
            ) from error

    return find
