"""The kernels of one decode step as the executor launches them, without the engines between: what launching costs.

Two graphs of the same launches are timed. One has a tree of full size behind a context; the other has no rows, no
context and nothing to commit, so that what is left of a kernel is its launch and its first lines. A third is the
smallest kernel many times. What must stay true: the launches are those of `edgellm.engine.device.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Array, Buffer, Launch, Program
from edgellm.engine.device.memory import Layout, Pool, SlotMemory
from edgellm.engine.device.programs import commit_rows, write_control
from edgellm.engine.device.rows import Model
from edgellm.engine.device.steps import TreeStep
from edgellm.engine.device.symbolic import SymbolicDevice
from edgellm.jetson.gpu_device import Arena, Bench, Needed
from edgellm.jetson.gpu_scale import Scale
from edgellm.jetson.gpu_timing import Spread, replays, time_replays
from edgellm.jetson.precision import VARIANTS
from edgellm.jetson.roofline import verify_bytes
from edgellm.kernels.spec import empty_tensors
from edgellm.kernels.tree import TREE_BUILD

_SMALLEST: Final = 256  # launches of the smallest kernel in one graph
_ALIGNMENT: Final = 16 << 20  # bytes for what stands between an arena's buffers


@dataclass(frozen=True, slots=True)
class StepGraph:
    """One graph. `launches` of it; `ms` of a replay; `moved` bytes, 0 where there is nothing to do."""

    name: str
    launches: int
    ms: Spread
    moved: int

    @property
    def us_per_launch(self) -> float:
        return 1000 * self.ms.median / self.launches


class _OnArena:
    """Memory of an arena, for what a step allocates."""

    def __init__(self, bench: Bench, arena: Arena) -> None:
        self._device, self._arena = bench.device, arena

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> Buffer:
        made = self._arena.take(tuple(shape), dtype)
        self._device.clear(made)
        return made

    def upload(self, target: Buffer, values: Array) -> None:
        self._device.upload(target, values)


@dataclass(frozen=True, slots=True)
class _Step:
    launches: list[Launch]
    model: Model
    slot: SlotMemory
    step: TreeStep


def step_kernels(scale: Scale, splits: int) -> list[Needed]:
    """What `time_step` launches."""
    found = [(launch.kernel, launch.sizes) for launch in _step(SymbolicDevice(), scale, splits).launches]
    return [*dict.fromkeys(found), (TREE_BUILD, scale.sizes(1))]


def step_bytes(scale: Scale, splits: int) -> int:
    """Of an arena for `time_step`."""
    symbolic = SymbolicDevice()
    _step(symbolic, scale, splits)
    return symbolic.used + _ALIGNMENT


def time_step(bench: Bench, arena: Arena, scale: Scale, splits: int) -> list[StepGraph]:
    """Time the three graphs."""
    arena.reset()
    made = _step(_OnArena(bench, arena), scale, splits)
    _fill(bench, made, scale.spec)
    device, nodes, context = bench.device, max(scale.rows), _context(scale)
    parts = verify_bytes(scale.spec, VARIANTS["nvfp4"], context=context, nodes=nodes)
    moved = round(parts.kv + parts.state + parts.conv + parts.capsules + parts.logits / 2)
    program = device.program(made.launches)
    graphs = []
    for name, rows, tokens, floor in (
        (f"{nodes} rows at {context}", nodes, context, moved),
        ("nothing to do", 0, 0, 0),
    ):
        write_control(made.model, made.slot.control, tokens, rows)
        accepted = (1, 0) if rows else (0, 0)
        device.upload(made.slot.accepted, np.array(accepted, np.int32))
        graphs.append(_timed(bench, name, program, len(made.launches), floor, scale))
    sizes = scale.sizes(1)
    buffers = arena.inputs(empty_tensors(TREE_BUILD, sizes))
    small = device.program([Launch(TREE_BUILD, sizes, buffers)] * _SMALLEST)
    return [*graphs, _timed(bench, "the smallest kernel (tree_build)", small, _SMALLEST, 0, scale)]


def _timed(bench: Bench, name: str, program: Program, launches: int, moved: int, scale: Scale) -> StepGraph:
    count = replays(bench.device, program, scale.minimum_ms)
    times = [time_replays(bench.device, program, count) for _ in range(scale.rounds)]
    return StepGraph(name, launches, Spread.of(times), moved)


def _context(scale: Scale) -> int:
    """Committed tokens: what is left of the layout's pages is for the rows that are committed."""
    return sorted(scale.contexts)[len(scale.contexts) // 2]


def _layout(scale: Scale) -> Layout:
    pages = _context(scale) // 64 + 1
    sizes = {"slots": 1, "page": 64, "pages": pages, "max_pages": pages, "snapshots": 0}
    return Layout(io="bf16", **sizes, nodes=max(scale.rows), chunk=1, mtp=False)


def _step(device: Any, scale: Scale, splits: int) -> _Step:
    spec, layout = scale.spec, _layout(scale)
    model = Model(device, spec, layout, _constants(device, spec, layout), Pool(device, spec, layout), splits)
    slot = SlotMemory(device, spec, layout)
    step = TreeStep(model, layout.nodes)
    operations = step.operations(slot, *slot.capsules)
    launches = [operation for operation in operations if isinstance(operation, Launch)]
    tails = (slot.tail_k, slot.tail_v)
    layers = slice(0, len(spec.full_layers))
    launches.append(commit_rows(model, tails, slot.page_table, slot.control, slot.accepted, layers))
    return _Step(launches, model, slot, step)


def _constants(device: Any, spec: ModelSpec, layout: Layout) -> dict[str, Buffer]:
    """Weights of the kernels; see `graph.segments.save_kernel_weights`."""
    rng, d, a = np.random.default_rng(0), spec.linear, spec.attention
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in spec.linear_layers:
        shapes[f"taps.{layer}"] = (d.conv_kernel, d.conv_channels)
        shapes |= {f"{name}.{layer}": (d.value_heads,) for name in ("decay", "dt_bias")}
    for layer in spec.full_layers:
        shapes |= {f"{name}.{layer}": (a.head_dim,) for name in ("q_norm", "k_norm")}
        shapes[f"kv_scale.{layer}"] = (2,)
    shapes |= dict.fromkeys(("cos", "sin"), (layout.max_pages * layout.page, a.rotary_dim // 2))
    made: dict[str, Buffer] = {}
    for name, shape in shapes.items():
        values = np.abs(rng.standard_normal(shape)).astype(np.float32) * (-1 if name.startswith("decay") else 1)
        made[name] = device.zeros(shape, np.float32)
        device.upload(made[name], values)
    return made


def _fill(bench: Bench, made: _Step, spec: ModelSpec) -> None:
    """Random projections and logits, a chain of nodes, a page table."""
    device, rng, rows = bench.device, np.random.default_rng(1), made.step.rows
    for turn in range(2):
        for kind in set(spec.layers):
            for buffer in rows.projections(kind, turn).values():
                device.upload(buffer, rng.standard_normal(buffer.shape).astype(buffer.dtype))
    device.upload(rows.logits, rng.standard_normal(rows.logits.shape).astype(np.float32))
    device.upload(rows.parents, np.arange(-1, rows.parents.shape[0] - 1, dtype=np.int32))
    device.upload(made.slot.page_table, np.arange(made.slot.page_table.shape[0], dtype=np.int32))
