from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.device.memory import Layout
from edgellm.engine.self_check import MOST_DIVERGENCE, check_device, compare
from edgellm.engine.tensorrt import DeviceExecutor


def test_a_device_that_computes_right_passes(
    executor: DeviceExecutor, quantized: Checkpoint, layout: Layout, tmp_path: Path
) -> None:
    found = check_device(executor, quantized, layout, tmp_path)
    assert found.passed
    assert found.agreement == 1
    assert found.divergence < 1e-3
    assert executor.length(0) == 0


def test_a_device_with_one_wrong_kernel_fails(
    executor: DeviceExecutor, quantized: Checkpoint, layout: Layout, tmp_path: Path
) -> None:
    """As after a miscompilation: one convolution has other weights."""
    taps = executor.model.constants["taps.0"]
    executor._device.upload(taps, executor._device.download(taps)[::-1])
    assert not check_device(executor, quantized, layout, tmp_path).passed


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_fails(wrong: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    assert compare(rows, rows).divergence == 0
    broken = rows.copy()
    broken[1, 7] = wrong
    assert not compare(rows, broken).passed


def test_the_divergence_is_that_of_the_distributions() -> None:
    rows = np.log(np.array([[0.25, 0.75]], np.float32))
    found = compare(rows, np.log(np.array([[0.5, 0.5]], np.float32)))
    assert found.divergence == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), abs=1e-6)
    assert found.passed is (found.divergence < MOST_DIVERGENCE)
