"""The device memory of an executor: the KV pool, what every slot owns, and the constants of the kernels.

Every layer's part of a pool is contiguous, so that a kernel over all layers and a kernel of one layer read the same
memory. The MTP layer has the same pages as the attention layers: its row of token j stands at row j, and row 0, which
no token fills, is never visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Buffer, Device
from edgellm.kernels.sizes import Io
from edgellm.kernels.spec import CONTROL

IO_DTYPES: Final[Mapping[Io, np.dtype[np.generic]]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}
FP8: Final = np.dtype(ml_dtypes.float8_e4m3fn)
# Rows that the MTP layer keeps behind its pages: a tree of 16 nodes is drafted from at most 121 nodes, behind up to 15
# committed tokens whose rows are not in the pages yet; a multiple of 32.
DRAFT_TAIL: Final = 160
WAITING: Final = 32  # hidden rows of committed tokens that wait for the MTP layer, at most


@dataclass(frozen=True, slots=True)
class Layout:
    """Counts that the buffers are made for."""

    io: Io
    slots: int
    page: int  # tokens of a page
    pages: int  # of the pool
    max_pages: int  # of one slot
    snapshots: int  # that can be kept at the same time
    nodes: int  # most nodes of a verified tree
    chunk: int  # most tokens of a prefill chunk
    mtp: bool


class Capsules:
    """What one verify of a slot leaves for the next step, per DeltaNet layer; two of them take turns."""

    def __init__(self, device: Device, spec: ModelSpec, layout: Layout) -> None:
        d, layers = spec.linear, len(spec.linear_layers)
        self.k = device.zeros((layers, layout.nodes, d.key_heads, d.key_dim), IO_DTYPES[layout.io])
        self.u = device.zeros((layers, layout.nodes, d.value_heads, d.value_dim), np.float32)
        self.g = device.zeros((layers, layout.nodes, d.value_heads), np.float32)


class State:
    """The recurrent state of one sequence: of a slot, or kept in a snapshot."""

    def __init__(self, device: Device, spec: ModelSpec, layout: Layout) -> None:
        d, layers, io = spec.linear, len(spec.linear_layers), IO_DTYPES[layout.io]
        self.conv = device.zeros((layers, d.conv_kernel - 1, d.conv_channels), io)
        self.state = device.zeros((layers, d.value_heads, d.key_dim, d.value_dim), np.float32)
        self.hidden = device.zeros((spec.hidden if layout.mtp else 0,), io)  # of the last token

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """Everything in it."""
        return self.conv, self.state, self.hidden

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class SlotMemory:
    """What one slot owns."""

    def __init__(self, device: Device, spec: ModelSpec, layout: Layout) -> None:
        io, layers, attention = IO_DTYPES[layout.io], len(spec.full_layers), spec.attention
        rows = (attention.kv_heads, attention.head_dim)
        self.control = device.zeros((CONTROL,), np.int32)
        self.accepted = device.zeros((2,), np.int32)
        self.page_table = device.zeros((layout.max_pages,), np.int32)
        self.state = State(device, spec, layout)
        self.capsules = (Capsules(device, spec, layout), Capsules(device, spec, layout))
        self.conv_rows = device.zeros(
            (len(spec.linear_layers), layout.nodes, spec.linear.conv_channels), io
        )  # raw rows of the last tree
        self.tail_k = device.zeros((layers, layout.nodes, *rows), FP8)
        self.tail_v = device.zeros((layers, layout.nodes, *rows), FP8)
        self.hidden = device.zeros((layout.nodes, spec.hidden), io)  # of the last tree's nodes
        if layout.mtp:
            words = DRAFT_TAIL // 32
            self.draft_control = device.zeros((CONTROL,), np.int32)
            self.draft_accepted = device.zeros((2,), np.int32)
            self.draft_k = device.zeros((1, DRAFT_TAIL, *rows), FP8)
            self.draft_v = device.zeros((1, DRAFT_TAIL, *rows), FP8)
            self.ancestors = device.zeros((DRAFT_TAIL, words), np.int32)
            self.depths = device.zeros((DRAFT_TAIL,), np.int32)
            # Hidden rows that the MTP layer reads: WAITING of committed tokens, then one per row of its tail.
            self.hidden_pool = device.zeros((WAITING + DRAFT_TAIL, spec.hidden), io)


class Pool:
    """KV pages of all layers, the MTP layer last."""

    def __init__(self, device: Device, spec: ModelSpec, layout: Layout) -> None:
        layers = len(spec.full_layers) + layout.mtp
        shape = (layers, layout.pages, layout.page, spec.attention.kv_heads, spec.attention.head_dim)
        self.k = device.zeros(shape, FP8)
        self.v = device.zeros(shape, FP8)

    def page_bytes(self) -> int:
        """Of one page in all layers."""
        return (self.k.nbytes + self.v.nbytes) // self.k.shape[1]


def load_constants(device: Device, path: Path) -> dict[str, Buffer]:
    """Upload the kernels' weights, by name; see `graph.segments.save_kernel_weights`."""
    found: dict[str, Buffer] = {}
    for name, values in load_file(path).items():
        found[name] = device.zeros(values.shape, values.dtype)
        device.upload(found[name], values)
    return found
