"""Run all measurements of `edgellm bench` and show them: one dict for --json, one table for people."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgellm.bench.bandwidth import ReadProbe
from edgellm.bench.executor import DepthTiming, time_depth, time_restore
from edgellm.bench.host import host_overhead_ms_per_step
from edgellm.bench.weights import decode_weight_bytes
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.engine.registry import open_executor, usable_cores

Result = dict[str, Any]
Report = Callable[[str], None]


def run_bench(
    bundle: Path | None,
    *,
    preset: str,
    precision: str,
    depth: int,
    rounds: int,
    threads: int | None,
    report: Report,
) -> Result:
    """Measure `bundle`, or a random-weight `preset` built for the run and removed after it.

    Returns a flat dict, but for `machine` (`Machine.to_dict`, as read right after the last timed step: what the figures
    hold for); rates are tokens per second, `*_bandwidth_fraction` is (weight bytes x decode rate) over the
    read bandwidth measured between the same steps, `tree_over_chain` is the time of a 16-node verify over a 16-token
    advance.
    """
    if bundle is not None:
        return _measure(bundle, depth, rounds, threads, report)
    from edgellm.checkpoint.synth import make_checkpoint

    with tempfile.TemporaryDirectory(prefix="edgellm-bench-") as folder:
        report(f"building preset {preset} {precision}")
        checkpoint = Path(folder) / "checkpoint"
        make_checkpoint(preset, checkpoint, seed=0)
        built = build_bundle(checkpoint, Path(folder) / f"{preset}-{precision}", load_recipe(f"cpu-{precision}"))
        return _measure(built, depth, rounds, threads, report)


def _measure(path: Path, depth: int, rounds: int, threads: int | None, report: Report) -> Result:
    from edgellm.jetson.machine import read_machine

    threads = threads or usable_cores()
    bundle = Bundle.open(path)
    weight_bytes = decode_weight_bytes(path / "advance.onnx")
    report("loading")
    executor = open_executor(bundle, slots=2, context=depth + 4096, threads=threads, speculation=True)
    try:
        bandwidth = ReadProbe(threads).read
        shallow = time_depth(executor, 16, rounds=rounds, bandwidth=bandwidth, report=report)
        deep = time_depth(executor, depth, rounds=rounds, bandwidth=bandwidth, report=report)
        report(f"restore of {depth} tokens")
        restore = time_restore(executor, depth)
        machine = read_machine()  # while the clocks are still those of the work
    finally:
        executor.close()
    report("host overhead")
    return {
        "bundle": path.name,
        "threads": threads,
        "weight_bytes_per_step": weight_bytes,
        "memory_bandwidth_gb_s": round(shallow.bandwidth_gb_s, 2),
        **_figures("", shallow, weight_bytes),
        **_figures(f"depth_{depth}_", deep, weight_bytes),
        "restore_tokens": depth,
        "restore_ms": round(restore * 1e3, 2),
        "host_overhead_ms_per_step": round(host_overhead_ms_per_step(), 3),
        "machine": machine.to_dict(),
    }


def _figures(prefix: str, timing: DepthTiming, weight_bytes: int) -> Result:
    rate = timing.prefill_tokens / timing.prefill_s if timing.prefill_s else None
    return {
        f"{prefix}decode_tokens_per_s": round(1 / timing.decode_s, 2),
        f"{prefix}decode_bandwidth_fraction": round(weight_bytes / 1e9 / timing.decode_gb_per_step, 3),
        f"{prefix}prefill_tokens_per_s": round(rate, 1) if rate else None,
        f"{prefix}tree_over_chain": _ratio(timing.tree_s, timing.chain_s),
    }


def _ratio(a: float | None, b: float | None) -> float | None:
    return round(a / b, 3) if a and b else None


def print_table(result: Result, console: Console) -> None:
    """Show a result, one figure a row."""
    table = Table("figure", "value", title=f"edgellm bench {result['bundle']}")
    for key, value in result.items():
        if key == "machine":
            table.add_row(key, value["summary"])
        elif key != "bundle":
            table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else str(value))
    console.print(table)
