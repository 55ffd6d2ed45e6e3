"""Byte budgets of the cache: given by flags, or a share of the memory that is free."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from edgellm.engine.base import ExecutorInfo
from edgellm.errors import ConfigError

SHARE = 0.5  # of MemAvailable goes to the cache when no flag is given
SNAPSHOT_SHARE = 0.4  # of that to snapshots


@dataclass(frozen=True, slots=True)
class Budgets:
    blocks: int
    snapshots: int


def choose_budgets(info: ExecutorInfo, *, blocks: int | None = None, snapshots: int | None = None) -> Budgets:
    """Budgets in bytes. What is not given comes from MemAvailable after the executor has taken its memory.

    Raises:
        ConfigError: a given budget is negative.
    """
    for name, value in (("cache_bytes", blocks), ("snapshot_bytes", snapshots)):
        if value is not None and value < 0:
            raise ConfigError(f"{name}: {value} is negative")
    free = int(psutil.virtual_memory().available * SHARE)
    by_default = Budgets(int(free * (1 - SNAPSHOT_SHARE)), int(free * SNAPSHOT_SHARE))
    return Budgets(
        by_default.blocks if blocks is None else blocks,
        by_default.snapshots if snapshots is None else snapshots,
    )
