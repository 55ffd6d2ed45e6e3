"""The timing functions drive any executor correctly; no figure is asserted."""

from __future__ import annotations

from edgellm.bench.executor import time_depth, time_restore
from edgellm.engine.scripted import ScriptedExecutor


def test_runs_on_a_scripted_executor_and_frees_what_it_published() -> None:
    executor = ScriptedExecutor(vocab_size=100)
    timing = time_depth(executor, 100, rounds=3, bandwidth=lambda: 10.0, report=lambda _: None)
    assert timing.decode_s > 0
    assert timing.bandwidth_gb_s == 10.0
    assert timing.decode_gb_per_step == timing.decode_s * 10.0
    assert timing.tree_s is not None
    assert time_restore(executor, 130, rounds=2) >= 0
    assert executor.memory()["n_blocks"] == 0
    assert executor.memory()["n_snapshots"] == 0
