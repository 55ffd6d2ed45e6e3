"""The memory planner: what serving needs, item by item, and how much context fits into given bytes.

Budgets are bytes, never shares of a GPU: memory is shared with the system, and swap does not back it. What must stay
true: the need grows with context, sequences and snapshots; what is said to fit does, and a block more does not. Sizes
of weights, caches and states follow from the model; those of activations, the runtime and the build are estimates and
are marked so: nothing of this has been measured on a device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.recipe import EngineForm
from edgellm.engine.trt.memory_plan import BASE, COPIES
from edgellm.errors import ConfigError
from edgellm.jetson.precision import Part, Precision
from edgellm.jetson.sequence import (
    capsule_bytes,
    capsule_extra_bytes,
    conv_bytes,
    kv_token_bytes,
    rotary_bytes,
    snapshot_bytes,
    state_bytes,
)

Basis = Literal["computed", "estimate"]
SYSTEM_RESERVE: Final = 8 << 30  # for Linux, the desktop and other processes: pressure can wedge a unified-memory box
RUNTIME_BYTES: Final = 2 << 30  # CUDA context, TensorRT libraries, Python: an estimate
_MOST: Final = 4096  # slots or snapshots that are looked for
_PARTS: Final = {
    "gdn": "Gated DeltaNet projections",
    "attention": "attention projections",
    "mlp": "MLP",
    "head": "head",
    "embeddings": "embeddings",
    "mtp": "MTP layer",
    "small": "norms, convolutions",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be served.

    Attributes:
        context: tokens that every sequence can hold.
        slots: sequences that run at the same time.
        snapshots: recurrent snapshots that the cache keeps.
        cached: tokens of prefixes that the cache keeps beside those of the sequences that run.
        nodes: most nodes of a verify, root included.
        chunk: most tokens of a prefill step.
        block_tokens: tokens of a KV block.
        repeated: parts of the weights that engines hold more than once → how often more.
        form: in which the engines are built.

    Raises:
        ConfigError: a field is not positive (`snapshots`, `cached`: negative).
    """

    context: int
    slots: int
    snapshots: int
    cached: int = 0
    nodes: int = 16
    chunk: int = 1024
    block_tokens: int = 64
    repeated: Mapping[Part, int] = field(default_factory=dict)
    form: EngineForm = "whole"

    def __post_init__(self) -> None:
        for name in ("context", "slots", "nodes", "chunk", "block_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("snapshots", "cached"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must not be negative, got {getattr(self, name)}")

    @property
    def tokens(self) -> int:
        """Tokens that the KV blocks of the sequences hold: a last block is whole."""
        return self.slots * self._whole(self.context)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the cache's own KV blocks hold."""
        return self._whole(self.cached)

    def _whole(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens) * self.block_tokens


@dataclass(frozen=True, slots=True)
class Item:
    """One need, in bytes. `formula` says how it comes about."""

    name: str
    bytes: int
    basis: Basis
    formula: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What `workload` needs, against `memory_bytes` of which `reserve_bytes` stay with the system.

    Attributes:
        largest_context: tokens per sequence that fit with these slots and snapshots, at most the model's; 0: none.
        most_slots, most_snapshots: that fit when the other two stay; 0: none.
        build_bytes: what building the engines is taken to need, with the server stopped; an estimate.
    """

    workload: Workload
    items: tuple[Item, ...]
    memory_bytes: int
    reserve_bytes: int
    largest_context: int
    most_slots: int
    most_snapshots: int
    build_bytes: int

    @property
    def budget(self) -> int:
        """Bytes that serving may use."""
        return self.memory_bytes - self.reserve_bytes

    @property
    def needed(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def fits(self) -> bool:
        return self.needed <= self.budget

    @property
    def build_fits(self) -> bool:
        return self.build_bytes <= self.budget

    def check(self) -> None:
        """Raises `ConfigError`, with the bytes needed and what would fit, when the workload does not."""
        if self.fits:
            return
        load, fixed = self.workload, self.needed - _part(self.items, "KV") - _part(self.items, "snapshots")
        asked = f"{load.slots} sequences of {load.context} tokens and {load.snapshots} snapshots"
        if self.largest_context:
            advice = f"a context of {self.largest_context} fits"
        elif self.most_slots:
            advice = f"{self.most_slots} sequences fit"
        else:
            advice = f"without KV blocks and snapshots it is {fixed} bytes: use a smaller precision or a larger device"
        raise ConfigError(
            f"{asked} need {self.needed} bytes; {self.budget} are there ({self.memory_bytes} of memory less "
            f"{self.reserve_bytes} for the system; swap does not count): {advice}"
        )


def plan_memory(
    spec: ModelSpec,
    precision: Precision,
    workload: Workload,
    *,
    memory_bytes: int,
    reserve_bytes: int = SYSTEM_RESERVE,
) -> MemoryPlan:
    """Plan `workload` into `memory_bytes` (a device's, or what MemAvailable says of this machine).

    Raises:
        ConfigError: the context is longer than the model's, or a size is negative.
    """
    if workload.context > spec.max_positions:
        raise ConfigError(f"context: {workload.context} is more than the model's {spec.max_positions}")
    if memory_bytes < 0 or reserve_bytes < 0:
        raise ConfigError(f"memory, reserve: must not be negative, got {memory_bytes}, {reserve_bytes}")
    budget, block = memory_bytes - reserve_bytes, workload.block_tokens

    def most(limit: int, with_count: Callable[[int], Workload]) -> int:
        """Largest count from 1 to `limit` that fits; 0: none."""
        return bisect_right(range(1, limit + 1), budget, key=lambda n: _sum(spec, precision, with_count(n)))

    blocks = most(-(-spec.max_positions // block), lambda n: replace(workload, context=n * block))
    return MemoryPlan(
        workload=workload,
        items=tuple(_items(spec, precision, workload)),
        memory_bytes=memory_bytes,
        reserve_bytes=reserve_bytes,
        largest_context=min(blocks * block, spec.max_positions),
        most_slots=most(_MOST, lambda n: replace(workload, slots=n)),
        most_snapshots=most(_MOST, lambda n: replace(workload, snapshots=n)),
        build_bytes=_build_bytes(spec, precision, workload.form),
    )


def largest_contexts(
    spec: ModelSpec, precision: Precision, workload: Workload, slots: tuple[int, ...], **memory: int
) -> dict[int, int]:
    """Sequences → tokens that each of them can hold at most; `memory` as for `plan_memory`."""
    return {n: plan_memory(spec, precision, replace(workload, slots=n), **memory).largest_context for n in slots}


def _build_bytes(spec: ModelSpec, precision: Precision, form: EngineForm) -> int:
    """What the builder asks for: `COPIES` of the largest engine's weights, and `BASE`.

    That engine is the decoder or the MTP layer with embedding and head; in the split form a layer, embedding or head.
    """
    sizes = precision.weight_bytes(spec)
    mtp, embeddings, head = sizes["mtp"], sizes["embeddings"], sizes["head"] or sizes["embeddings"]
    largest = max(sum(sizes.values()) - mtp, mtp + embeddings + sizes["head"])
    if form == "split":
        mixers = (sizes["gdn"] / max(len(spec.linear_layers), 1), sizes["attention"] / max(len(spec.full_layers), 1))
        largest = max(int(max(mixers) + sizes["mlp"] / len(spec.layers)), embeddings, head, mtp)
    return int(COPIES * largest) + BASE


def _sum(spec: ModelSpec, precision: Precision, workload: Workload) -> int:
    return sum(item.bytes for item in _items(spec, precision, workload))


def _part(items: tuple[Item, ...], name: str) -> int:
    return sum(item.bytes for item in items if item.name.startswith(name))


def _items(spec: ModelSpec, precision: Precision, load: Workload) -> list[Item]:
    def item(name: str, size: float, formula: str, basis: Basis = "computed") -> Item:
        return Item(name, round(size), basis, formula)

    weights = precision.weight_bytes(spec)
    items = [
        item(f"weights: {_PARTS[part]}", size, f"{precision.per_weight(part):.4g} bytes per weight")
        for part, size in weights.items()
        if size
    ]
    if again := sum(weights[part] * times for part, times in load.repeated.items()):
        items.append(item("weights again", again, "engines of their own for verify, prefill and MTP"))
    token = kv_token_bytes(spec, precision.kv, mtp=True)
    for name, tokens in (("KV blocks of the sequences", load.tokens), ("KV blocks of the cache", load.cached_tokens)):
        items.append(item(name, tokens * token, f"{tokens} tokens x {token:g} bytes, MTP layer included"))
    each = capsule_bytes(spec) + capsule_extra_bytes(spec)
    logits = 4 * load.nodes * (spec.vocab + spec.hidden)
    width = 3 * spec.intermediate + spec.linear.conv_channels + 4 * spec.hidden
    width += 2 * spec.linear.value_heads * spec.linear.value_dim
    return [
        *items,
        item("recurrent state", load.slots * state_bytes(spec), f"{load.slots} sequences x {state_bytes(spec)} bytes"),
        item("convolution state", load.slots * conv_bytes(spec), f"{load.slots} sequences x {conv_bytes(spec)} bytes"),
        item("snapshots", load.snapshots * snapshot_bytes(spec), f"{load.snapshots} x {snapshot_bytes(spec)} bytes"),
        item(
            "capsules",
            2 * load.slots * load.nodes * each,
            f"2 sets x {load.slots} sequences x {load.nodes} nodes x {each} bytes",
        ),
        item(
            "rotary tables", rotary_bytes(spec, load.context), f"{load.context} x {spec.attention.rotary_dim} float32"
        ),
        item("logits and hidden rows", load.slots * logits, f"{load.slots} sequences x {logits} bytes"),
        item(
            "activations",
            2 * 2 * load.chunk * width,
            f"2 x {load.chunk} tokens x {width} values of 2 bytes; TensorRT decides",
            "estimate",
        ),
        item("runtime", RUNTIME_BYTES, "CUDA context, libraries, Python", "estimate"),
    ]
