"""The ONNX Runtime executor against fresh slots, see `executor_machine`."""

from __future__ import annotations

from typing import Any

from executor_machine import ExecutorMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from edgellm.engine.ort import OrtExecutor


class Machine(ExecutorMachine):
    pass


def test_every_answer_is_the_one_of_a_fresh_slot(executor: OrtExecutor, oracle: Any) -> None:
    Machine.executor, Machine.oracle = executor, oracle
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
