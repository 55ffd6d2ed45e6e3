"""`python -m edgellm.jetson.bench_gpu`: are the kernels right on this GPU, and how fast are they.

Made for one short lease of any NVIDIA GPU from compute capability 8.9 on. In this order, within --minutes:

1. parity: every kernel against its reference, on the shapes of a tiny model in three types and of the 27B one;
2. bandwidth: what moves the bytes of a step, in turns with a device-to-device copy;
3. graph: what launching the kernels of a decode step costs in a captured graph;
4. sanitizer: compute-sanitizer's memcheck and racecheck over the tiny shapes, where it is on PATH.

Writes gpu.json after every result and gpu.md (a section for kernels/BENCH.md) at its end. Status 1: a kernel is wrong,
did not run, or the sanitizer found something; a missed bandwidth target or a lack of time is told and is no failure.

Every part runs in a process of its own, for a fault on a GPU ends what a process can do there: the next one goes on
behind the case that failed.

On a machine without network: parts 1 and 2 import only NumPy, ml_dtypes and cuda-bindings (with cuda-pathfinder).
Part 3 needs onnx and safetensors too, the record of the machine onnx and psutil; where they are missing it says so.
Bring the binaries, so that no compiler is needed there (2.3 MB), and the packages that are missing as wheels:

    python -m edgellm.jetson.bench_gpu --compile build/cubins --arch sm_90a
    pip download --only-binary :all: --no-deps -d build/wheels --python-version 3.12 \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 ml_dtypes cuda-bindings cuda-pathfinder
    # there, in the source tree:
    WHEELS=build/wheels CUBINS=build/cubins jetson/run_gpu_bench.sh --out results

The wheel of cuda-bindings must be of the driver's CUDA: 13 for drivers from 580 on. The kernels of attention need an
instruction of compute capability 8.9; on an older GPU they are errors and the others are compared.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from edgellm.errors import EdgeLLMError
from edgellm.jetson.gpu_device import compiled_here, from_folder, save_cubins
from edgellm.jetson.gpu_phases import (
    FULL,
    FULL_SHAPES,
    PHASES,
    QUICK,
    QUICK_SHAPES,
    Record,
    Setup,
    all_needs,
    run_phase,
)
from edgellm.jetson.gpu_results import Results
from edgellm.jetson.gpu_sanitizer import sanitize
from edgellm.jetson.gpu_timing import Deadline
from edgellm.kernels.catalog import KERNELS
from edgellm.kernels.nvrtc import CompileError

PARTS: Final = (*PHASES, "sanitizer")
_SHARES: Final = {"parity": 0.55, "bandwidth": 0.8, "graph": 0.9, "sanitizer": 1.0}  # of the time, that a part ends by
_STARTS: Final = 8  # of one part, at most: a GPU that is lost again and again is given up


def main(arguments: Sequence[str] | None = None, *, setup: Setup | None = None) -> int:
    """Args:
    setup: what to run instead of what the options say, in this process; for tests.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    chosen = setup or _setup(options)
    try:
        if options.compile is not None:
            return _compile(options, chosen)
        if options.worker is not None:
            return _work(options, chosen)
        return _Run(options, given, chosen, in_process=setup is not None).run()
    except (EdgeLLMError, CompileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    first = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m edgellm.jetson.bench_gpu", description=first)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=12.0, help="time for everything")
    parser.add_argument("--quick", action="store_true", help="parity of tiny shapes in bfloat16, few timings")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=(), help="kernels to compare and time")
    parser.add_argument("--cubins", type=Path, help="take binaries from this folder; no compiler is needed")
    parser.add_argument("--compile", type=Path, help="only compile, into this folder; no GPU is needed")
    parser.add_argument("--arch", default="sm_90a", help="for --compile")
    parser.add_argument("--worker", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def _setup(options: argparse.Namespace) -> Setup:
    binary = compiled_here if options.cubins is None else from_folder(options.cubins)
    if options.quick:
        return Setup(QUICK_SHAPES, QUICK, options.kernels, binary)
    return Setup(FULL_SHAPES, FULL, options.kernels, binary)


def _compile(options: argparse.Namespace, setup: Setup) -> int:
    paths = save_cubins(options.compile, all_needs(setup), options.arch)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} binaries for {options.arch} in {options.compile}, {size / 1e6:.1f} MB")
    return 0


def _work(options: argparse.Namespace, setup: Setup) -> int:
    """One part, a line of JSON per result."""
    for record in run_phase(options.worker, setup, options.start):
        print(json.dumps(asdict(record)), flush=True)
    return 0


class _Run:
    """All parts, one after another."""

    def __init__(self, options: argparse.Namespace, given: list[str], setup: Setup, *, in_process: bool) -> None:
        self._options, self._given, self._setup, self._in_process = options, given, setup, in_process
        self._seconds = 60 * options.minutes
        self._deadline = Deadline(self._seconds, time.monotonic)
        options.out.mkdir(parents=True, exist_ok=True)
        binaries = "NVRTC, on this machine" if options.cubins is None else f"made elsewhere ({options.cubins})"
        command = shlex.join(["python", "-m", "edgellm.jetson.bench_gpu", *given])
        self._results = Results(options.out, binaries, command, setup.driver)

    def run(self) -> int:
        results = self._results
        print(results.headline(), flush=True)
        for part in PARTS:
            if part not in self._options.only:
                results.skip(f"{part}: not asked for")
            elif part == "sanitizer":
                self._sanitize()
            else:
                self._phase(part)
                results.read_clocks(f"after {part}")
        results.finish(self._seconds - self._deadline.left())
        print(f"\n{results.summary()}\nwrote {self._options.out / 'gpu.json'} and {self._options.out / 'gpu.md'}")
        return 1 if results.failed(self._options.only) else 0

    def _phase(self, part: str) -> None:
        at, starts, count = 0, 0, 1
        until = self._until(part)
        while at < count:
            if starts == _STARTS or self._deadline.left() <= until:
                why = f"the GPU was lost {starts} times" if starts == _STARTS else "no time left"
                self._results.skip(f"{part}: from item {at + 1} of {count if starts else 'all'} on: {why}")
                return
            starts += 1
            first = at
            with closing(self._records(part, at, self._deadline.left() - until)) as records:
                for record in records:
                    at, count = record.at + 1, record.count
                    self._show(part, record)
                    self._results.add(part, record)
            if at == first and self._deadline.left() > until:  # it said nothing, and not for want of time
                detail = "the process ended without a result; see its messages above"
                self._results.add(part, Record(at, max(count, at + 1), f"item {at + 1}", "error", {}, detail))
                at += 1

    def _until(self, part: str) -> float:
        """Seconds that must be left for the parts behind this one."""
        asked = [name for name in PARTS if name in self._options.only]
        return 0.0 if part == asked[-1] else self._seconds * (1 - _SHARES[part])

    def _records(self, part: str, start: int, seconds: float) -> Generator[Record, None, None]:
        if self._in_process:
            yield from run_phase(part, self._setup, start)
            return
        own = ["--worker", part, "--start", str(start)]
        command = [sys.executable, "-m", "edgellm.jetson.bench_gpu", *self._given, *own]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            timer = threading.Timer(seconds, process.kill)  # a kernel that never ends is stopped with its process
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    yield Record(**json.loads(line))
            finally:
                timer.cancel()
                process.kill()

    def _sanitize(self) -> None:
        arguments = ["--worker", "parity", "--quick"]
        if self._options.cubins is not None:
            arguments += ["--cubins", str(self._options.cubins)]
        for one in sanitize(arguments, self._deadline.left()):
            print(f"sanitizer  {one.check:<10} {one.status:<7} {one.detail}", flush=True)
            self._results.sanitized(one)

    @staticmethod
    def _show(part: str, record: Record) -> None:
        seconds = record.value.get("seconds")
        worst = record.value.get("worst") or {}
        detail = record.detail or (f"{max(worst.values()):.2f} of the limit" if worst else "")
        took = "" if seconds is None else f"  {seconds:.1f} s"
        place = f"{record.at + 1}/{record.count}"
        print(f"{part:<10} {place:>7}  {record.label:<62} {record.status:<7} {detail}{took}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
