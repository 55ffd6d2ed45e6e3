"""The parts of `bench_gpu` that touch the GPU, as numbered items whose results are yielded one by one.

A fault on a GPU ends everything that the process can do there. So whoever runs a phase takes what it yields, and where
it ends early starts it again, in another process, behind the last item. What must stay true: items of a phase have the
same numbers in every process, and an item that fails yields a result too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from edgellm.errors import ConfigError, EdgeLLMError, ExecutionError
from edgellm.jetson.gpu_device import Arena, Bench, Binary, Needed
from edgellm.jetson.gpu_parity import LARGE, TINY, Case, Shape, arena_bytes, parity_cases, run_case
from edgellm.jetson.gpu_scale import SPLITS, Scale, Workload, splits_for
from edgellm.jetson.gpu_timing import CopyRate, copy_rates, interleaved
from edgellm.jetson.gpu_workloads import workloads
from edgellm.kernels.nvrtc import CompileError

PHASES: Final = ("parity", "bandwidth", "graph")
_MEMORY_SHARE: Final = 0.6  # of the GPU's, that buffers may take

FULL: Final = Scale(
    spec=LARGE.spec,
    tokens=65536,
    contexts=(1024, 16384, 65536),
    rows=(16, 1),
    chunk=1024,
    behind=(0, 15360),
    copies=(256 << 20, 512 << 20, 1 << 30),
    rounds=15,
    minimum_ms=20.0,
)
QUICK: Final = replace(FULL, contexts=(1024, 16384), behind=(0,), copies=(256 << 20,), rounds=5, minimum_ms=10.0)
FULL_SHAPES: Final = (TINY, LARGE)
QUICK_SHAPES: Final = (replace(TINY, types=("bf16",)),)


@dataclass(frozen=True, slots=True)
class Setup:
    """What to run on: `driver` stands in for `cuda.bindings.driver` where it is given; `kernels`: () is all of them."""

    shapes: Sequence[Shape]
    scale: Scale
    kernels: Sequence[str]
    binary: Binary
    driver: Any = None

    def cases(self) -> list[Case]:
        """Of parity."""
        return [case for case in parity_cases(self.shapes) if not self.kernels or case.kernel.name in self.kernels]


@dataclass(frozen=True, slots=True)
class Record:
    """The result of item `at` (from 0) of `count`. `status` is "ok", "failed", "error" or "skipped"."""

    at: int
    count: int
    label: str
    status: str
    value: dict[str, Any]
    detail: str = ""


def run_phase(phase: str, setup: Setup, start: int) -> Iterator[Record]:
    """Results of the items from `start` on; ends behind an item that the GPU did not survive.

    Raises:
        ConfigError: there is no GPU, no driver or no memory.
        ExecutionError: the GPU does not work.
    """
    bench = Bench.open(setup.binary, setup.driver)
    try:
        yield from _RUN[phase](bench, setup, start)
    finally:
        with suppress(ExecutionError):  # of a GPU that is lost: the process ends
            bench.device.close()


def all_needs(setup: Setup) -> list[Needed]:
    """Every kernel with every sizes that any phase launches, whatever the GPU is."""
    from edgellm.jetson.gpu_sequence import step_kernels

    found: list[Needed] = [(case.kernel, case.sizes) for case in setup.cases()]
    for workload in workloads(setup.scale, 1, 1, all_splits=True):
        found += workload.needs
    for splits in SPLITS:
        found += step_kernels(setup.scale, splits)
    return list(dict.fromkeys(found))


def _parity(bench: Bench, setup: Setup, start: int) -> Iterator[Record]:
    cases = setup.cases()
    _compile_ahead(bench, setup, [(case.kernel, case.sizes) for case in cases[start:]])
    arena = Arena(bench.device, arena_bytes(cases))
    for at, case in enumerate(cases[start:], start):
        outcome = run_case(bench, arena, case)
        yield Record(at, len(cases), case.label, outcome.status, outcome.as_dict(), outcome.detail)
        if outcome.status == "error" and not _alive(bench):
            return


def _bandwidth(bench: Bench, setup: Setup, start: int) -> Iterator[Record]:
    scale = setup.scale
    limit = int(_MEMORY_SHARE * bench.gpu.memory_bytes) - 2 * max(scale.copies)
    found = workloads(scale, bench.gpu.l2_bytes, bench.gpu.multiprocessors)
    if setup.kernels:
        found = [one for one in found if any(kernel.name in setup.kernels for kernel, _ in one.needs)]
    count = 1 + len(found)
    _compile_ahead(bench, setup, [need for one in found for need in one.needs])
    held = Arena(bench.device, 2 * max(scale.copies) + (1 << 20))
    rates = copy_rates(bench.device, held, scale.copies, scale.rounds, scale.minimum_ms)
    if start == 0:
        shown = {"rates": [{"bytes": rate.bytes, "gb_s": asdict(rate.gb_s)} for rate in rates]}
        yield Record(0, count, "device-to-device copy", "ok", shown, f"{rates[0].gb_s.median:.0f} GB/s")
    arena = Arena(bench.device, max((one.arena for one in found if one.arena <= limit), default=1))
    for at, workload in enumerate(found[max(0, start - 1) :], max(1, start)):
        label = f"{workload.name}, {workload.detail}"
        if workload.arena > limit:
            yield Record(at, count, label, "skipped", {}, f"needs {workload.arena} bytes, {limit} may be taken")
            continue
        try:
            value = _timed(bench, arena, workload, rates[0], scale)
        except (EdgeLLMError, CompileError) as error:
            yield Record(at, count, label, "error", {}, str(error)[:500])
            if not _alive(bench):
                return
        else:
            ratio = value["ratio"]["median"]
            yield Record(at, count, label, "ok", value, f"{ratio:.0%} of the copy's rate")


def _timed(bench: Bench, arena: Arena, workload: Workload, copy: CopyRate, scale: Scale) -> dict[str, Any]:
    arena.reset()
    program = bench.device.program(workload.build(bench.device, arena))
    timing = interleaved(bench.device, program, workload.moved, copy, scale.rounds, scale.minimum_ms)
    shown = ("name", "detail", "times", "moved", "operations", "formula", "target")
    return {**{name: getattr(workload, name) for name in shown}, **asdict(timing)}


def _graph(bench: Bench, setup: Setup, start: int) -> Iterator[Record]:
    if start:
        return
    label, scale = "kernels of a decode step in a graph", setup.scale
    try:
        from edgellm.jetson.gpu_sequence import step_bytes, step_kernels, time_step
    except ImportError as error:
        yield Record(0, 1, label, "skipped", {}, f"the executor's modules cannot be imported: {error}")
        return
    splits = splits_for(bench.gpu.multiprocessors, scale.spec.attention.kv_heads)
    try:
        _compile_ahead(bench, setup, step_kernels(scale, splits))
        graphs = time_step(bench, Arena(bench.device, step_bytes(scale, splits)), scale, splits)
    except (EdgeLLMError, CompileError) as error:
        yield Record(0, 1, label, "error", {}, str(error)[:500])
        return
    value: dict[str, Any] = {"graphs": [{**asdict(graph), "us_per_launch": graph.us_per_launch} for graph in graphs]}
    shown = "; ".join(f"{graph.name}: {graph.us_per_launch:.2f} µs a launch" for graph in graphs)
    yield Record(0, 1, label, "ok", value, shown)


_RUN: Final = {"parity": _parity, "bandwidth": _bandwidth, "graph": _graph}


def _alive(bench: Bench) -> bool:
    """Whether the GPU still does what it is told."""
    try:
        bench.device.download(bench.device.zeros((1,), "uint8"))
    except (ConfigError, ExecutionError):
        return False
    return True


def _compile_ahead(bench: Bench, setup: Setup, needed: Sequence[Needed]) -> None:
    """Fill NVRTC's cache on all cores; what does not compile is told when it is launched."""
    if setup.driver is not None:
        return

    def make(one: Needed) -> None:
        with suppress(EdgeLLMError, CompileError):
            setup.binary(*one, bench.gpu.architecture)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, dict.fromkeys(needed)))
