"""Byte budgets from flags and from free memory."""

from __future__ import annotations

import dataclasses

import pytest

from edgellm.cache import CacheBudgets, plan_budgets
from edgellm.errors import ConfigError


@pytest.fixture
def info(make_engine):
    info = make_engine(block=64).executor.info
    return dataclasses.replace(info, max_tokens=6400, block_bytes=1000, snapshot_bytes=10_000)  # a path is 100 blocks


def test_flags_are_used_as_they_are(info) -> None:
    assert plan_budgets(info, block_bytes=123_456, snapshot_bytes=20_000) == CacheBudgets(123_456, 20_000)
    assert plan_budgets(info, block_bytes=0, snapshot_bytes=0) == CacheBudgets(0, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"block_bytes": -1}, "cache_bytes: -1 is negative"),
        ({"snapshot_bytes": -1}, "snapshot_bytes: -1 is negative"),
        ({"block_bytes": 99_999}, "cache_bytes: 99999 bytes are too few for one sequence of 6400 tokens.*100000"),
        ({"snapshot_bytes": 19_999}, "snapshot_bytes: 19999 .*20000"),
    ],
)
def test_flags_out_of_range(info, flags, message) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_budgets(info, **flags, available_bytes=1 << 30)


def test_half_of_the_free_memory_is_split_as_paths_use_it(info) -> None:
    budgets = plan_budgets(info, available_bytes=3_600_000)
    assert budgets == CacheBudgets(1_000_000, 800_000)


def test_a_big_machine_does_not_give_it_all(info) -> None:
    assert plan_budgets(info, available_bytes=1 << 50) == CacheBudgets(64 * 100_000, 64 * 80_000)


def test_the_other_budget_gets_the_rest(info) -> None:
    assert plan_budgets(info, block_bytes=400_000, available_bytes=1_000_000) == CacheBudgets(400_000, 100_000)
    assert plan_budgets(info, snapshot_bytes=40_000, available_bytes=1_000_000) == CacheBudgets(460_000, 40_000)


def test_too_little_free_memory_is_a_warning(info, caplog) -> None:
    assert plan_budgets(info, available_bytes=100_000).blocks < 100_000
    assert "long prompts will not be cached" in caplog.text
    caplog.clear()
    plan_budgets(info, block_bytes=0, available_bytes=100_000)
    assert not caplog.text


def test_the_real_machine(info) -> None:
    budgets = plan_budgets(info)
    assert budgets.blocks > 0
    assert budgets.snapshots > 0
