"""Measurements of one bundle on the machine where it runs, as `bench_thor` starts them: each prints one JSON object.

`python -m edgellm.bench.steps self-check CHECKPOINT BUNDLE | timings BUNDLE | restore BUNDLE`
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from edgellm.bench.executor import time_depth, time_restore, timed
from edgellm.engine.base import Chunk, DraftNodes, Executor
from edgellm.engine.bundle import Bundle
from edgellm.engine.registry import open_executor
from edgellm.errors import EdgeLLMError
from edgellm.jetson.machine import read_machine

DEPTHS: Final = (16, 1024, 16384, 65536)  # tokens
_ROOM: Final = 4096  # tokens that are measured behind a depth
_ROUNDS: Final = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1: an error, or a self-check that did not pass; its figures are printed all the same."""
    first = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m edgellm.bench.steps", description=first)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("self-check", "timings", "restore"):
        command = commands.add_parser(name)
        if name == "self-check":
            command.add_argument("checkpoint", type=Path)
        else:
            command.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="committed tokens")
        command.add_argument("bundle", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "self-check":
            found = self_check(options.checkpoint, options.bundle)
        else:
            measure = timings if options.command == "timings" else restores
            found = measure(options.bundle, options.depths)
    except EdgeLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**found, "machine": read_machine().to_dict()}))
    return 0 if found.get("passed", True) else 1


def self_check(checkpoint: Path, bundle: Path) -> dict[str, Any]:
    """First tokens on the GPU against the CPU, see `edgellm.engine.self_check`."""
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.engine.self_check import check_bundle

    found = check_bundle(bundle, Checkpoint.open(checkpoint))
    return {**asdict(found), "passed": found.passed}


def timings(path: Path, depths: Sequence[int]) -> dict[str, Any]:
    """Milliseconds of a step at every depth that the bundle's context has room for, medians on the wall clock."""
    executor, fitting = _opened(path, depths, slots=1)
    rows = []
    try:
        for depth in fitting:
            timing = time_depth(executor, depth, rounds=_ROUNDS, bandwidth=lambda: 0.0, report=_tell)
            seconds = {
                "decode": timing.decode_s,
                "chain_16": timing.chain_s,
                "verify_16": timing.tree_s,
                "prefill": timing.prefill_s,
                "draft": _draft(executor),
            }
            rows.append(
                {
                    "depth": depth,
                    "prefill_tokens": timing.prefill_tokens,
                    **{f"{name}_ms": _milliseconds(value) for name, value in seconds.items()},
                }
            )
    finally:
        executor.close()
    return {"depths": rows, "left_out": [depth for depth in depths if depth not in fitting]}


def restores(path: Path, depths: Sequence[int]) -> dict[str, Any]:
    """Milliseconds to restore a prefix, to keep a snapshot and to publish a block, and bytes of both."""
    executor, fitting = _opened(path, depths, slots=2)
    info = executor.info
    rows = []
    try:
        for depth in fitting:
            _tell(f"restore of {depth} tokens")
            restore = time_restore(executor, depth)  # leaves the prefix in slot 0
            rows.append({"depth": depth, "restore_ms": round(1e3 * restore, 3), **_snapshots(executor)})
    finally:
        executor.close()
    return {"depths": rows, "snapshot_bytes": info.snapshot_bytes, "block_bytes": info.block_bytes}


def _opened(path: Path, depths: Sequence[int], slots: int) -> tuple[Executor, list[int]]:
    bundle = Bundle.open(path)
    context = bundle.manifest.context
    fitting = [depth for depth in depths if depth + _ROOM <= context] or [min(depths)]
    longest = min(context, max(fitting) + _ROOM)
    return open_executor(bundle, slots=slots, context=longest, speculation=True), fitting


def _draft(executor: Executor) -> float | None:
    """Seconds of one draft step; None: there is no draft layer."""
    if not executor.info.draft_top_k:
        return None
    executor.advance([Chunk(0, [1], True)])
    return _median(lambda: executor.draft([DraftNodes(0, [1], [-1])]))


def _snapshots(executor: Executor) -> dict[str, float]:
    block = executor.info.block_tokens

    def keep() -> None:
        executor.free_snapshot(executor.snapshot(0))

    def publish() -> None:
        executor.free_block(executor.publish(0, 0, min(block, executor.length(0))))

    return {"snapshot_ms": round(1e3 * _median(keep), 3), "publish_ms": round(1e3 * _median(publish), 3)}


def _median(call: Callable[[], object]) -> float:
    times = [timed(call) for _ in range(_ROUNDS + 1)]
    return statistics.median(times[1:])


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
