"""How much memory and disk a build takes, known before anything is built.

TensorRT holds an engine's weights twice at the end of a build: in the layout of its kernels, and in the finished plan.
Measured with TensorRT-RTX 1.7, ahead of time, on an 8-layer cut of the 27 B shape: 5.0 GB of weights, 11.0 GB at the
peak. TensorRT on a device also has them in GPU memory while it times kernels, the same memory on a Jetson; that is an
assumption, not measured. The mapped weight file is not counted: the system takes its pages back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from edgellm.engine.recipe import EngineForm
from edgellm.errors import ConfigError
from edgellm.graph.source import Source

COPIES: Final = 3.25  # of the weights of the engine that is being built, on the device
AHEAD_OF_TIME_COPIES: Final = 2.25  # without a GPU
BASE: Final = 1 << 30  # bytes: TensorRT's libraries, kernels, the graph
_BYTES: Final = {"nvfp4": 0.5 + 1 / 16, "fp8": 1.0}  # per weight; all others are kept 16 bits wide


@dataclass(frozen=True, slots=True)
class BuildNeeds:
    """In bytes."""

    engines: dict[str, int]  # name → weights in it
    memory: int
    disk: int


def plan_build(
    source: Source, rope_rows: int, *, ahead_of_time: bool = False, form: EngineForm = "whole"
) -> BuildNeeds:
    """What building the engines of a checkpoint takes.

    Args:
        rope_rows: rows of the RoPE tables.
        ahead_of_time: whether no GPU takes part in the build.
        form: see `edgellm.engine.recipe.TensorRtRecipe`.
    """
    sizes = {
        name: math.ceil(math.prod(shape) * _BYTES.get(source.kind(name), 2.0))
        for name, shape in source.spec.expected_tensors().items()
        if len(shape) == 2
    }
    rope = rope_rows * source.spec.attention.rotary_dim * 4 if form == "whole" else 0
    mtp = sum(size for name, size in sizes.items() if name.startswith("mtp."))
    embedding, head = sizes["embed_tokens.weight"], sizes.get("lm_head.weight", 0)
    decoder = sum(sizes.values()) - mtp + rope
    if form == "whole":
        engines = {"verify": decoder, "prefill": decoder, "commit": 0}
        if source.spec.mtp_layers:
            engines["mtp"] = mtp + embedding + head + rope
    else:
        engines = {"embed": embedding, "head": head or embedding, "mtp": mtp}
        for name, size in sizes.items():  # a segment has less than two halves of layers
            if name.startswith("layers."):
                layer = f"segment {name.split('.')[1]}"
                engines[layer] = engines.get(layer, 0) + size
        if form == "plugins":
            engines["verify"] = decoder
    weights = sum(sizes.values()) + rope  # the graphs' file, removed at the end
    copies = AHEAD_OF_TIME_COPIES if ahead_of_time else COPIES
    return BuildNeeds(engines, int(copies * max(engines.values())) + BASE, weights + sum(engines.values()))


def check_room(needs: BuildNeeds, folder: Path, *, available: int | None = None, free: int | None = None) -> None:
    """Refuse a build that does not fit.

    Args:
        folder: an existing folder on the disk that is written to.
        available: bytes of memory; default: MemAvailable. Swap does not count: CUDA does not use it.
        free: bytes of disk; default: what is free.

    Raises:
        ConfigError: with the bytes that are needed and those that are there.
    """
    memory = psutil.virtual_memory().available if available is None else available
    disk = psutil.disk_usage(str(folder)).free if free is None else free
    for what, needed, here in (("memory", needs.memory, memory), ("disk", needs.disk, disk)):
        if needed > here:
            raise ConfigError(
                f"building the engines needs {needed} bytes of {what} ({needed / 1e9:.1f} GB), "
                f"{here} bytes ({here / 1e9:.1f} GB) are available: free some, or build on another machine"
            )


def existing(folder: Path) -> Path:
    """`folder` or the nearest of its parents that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
