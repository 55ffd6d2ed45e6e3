"""Byte budgets of the cache: given by flags, or a share of the memory that is free.

What must stay true: a budget that was asked for is used as it is or refused, never changed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psutil

from edgellm.engine.base import ExecutorInfo
from edgellm.errors import ConfigError

logger = logging.getLogger(__name__)

SHARE = 0.5  # of MemAvailable goes to the cache when no flag is given
SNAPSHOTS_PER_PATH = 8  # budgets are split as if every full-context path had this many snapshots
USEFUL_PATHS = 64  # the default never exceeds this many full-context paths


@dataclass(frozen=True, slots=True)
class CacheBudgets:
    """Bytes for KV blocks and for recurrent snapshots."""

    blocks: int
    snapshots: int


def plan_budgets(
    info: ExecutorInfo,
    *,
    block_bytes: int | None = None,
    snapshot_bytes: int | None = None,
    available_bytes: int | None = None,
) -> CacheBudgets:
    """Budgets from flags; what is not given comes from MemAvailable, after the executor has taken its memory.

    An executor with pools of its own took them by the same flags: they are the budgets.

    The smallest useful cache holds one full-context sequence with two snapshots (the one restored and the next one).
    A flag of 0 turns the cache off; a flag that is smaller than useful is an error. When it is the free memory that is
    too small, the cache keeps what fits, long prompts are not cached, and a warning says so.

    Args:
        block_bytes, snapshot_bytes: the flags; None: not given.
        available_bytes: MemAvailable; None: ask the system.

    Raises:
        ConfigError: a flag is negative or between 0 and the smallest useful size.
    """
    path = -(-info.max_tokens // info.block_tokens) * info.block_bytes
    smallest = CacheBudgets(path, 2 * info.snapshot_bytes)
    for flag, value, least in (
        ("cache_bytes", block_bytes, smallest.blocks),
        ("snapshot_bytes", snapshot_bytes, smallest.snapshots),
    ):
        if value is not None and value < 0:
            raise ConfigError(f"{flag}: {value} is negative")
        if value is not None and 0 < value < least:
            raise ConfigError(
                f"{flag}: {value} bytes are too few for one sequence of {info.max_tokens} tokens, which needs {least}; "
                f"0 turns the cache off"
            )
    if info.max_blocks is not None:
        room = info.max_blocks * info.block_bytes
        block_bytes = room if block_bytes is None else min(block_bytes, room)
    if info.max_snapshots is not None:
        room = info.max_snapshots * info.snapshot_bytes
        snapshot_bytes = room if snapshot_bytes is None else min(snapshot_bytes, room)
    if block_bytes is not None and snapshot_bytes is not None:
        return CacheBudgets(block_bytes, snapshot_bytes)
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    snapshots = SNAPSHOTS_PER_PATH * info.snapshot_bytes
    total = max(int(available * SHARE) - (block_bytes or 0) - (snapshot_bytes or 0), 0)
    total = min(total, USEFUL_PATHS * (path + snapshots))
    if block_bytes is None and snapshot_bytes is None:
        budgets = CacheBudgets(total * path // max(path + snapshots, 1), total * snapshots // max(path + snapshots, 1))
    else:
        budgets = CacheBudgets(
            total if block_bytes is None else block_bytes, total if snapshot_bytes is None else snapshot_bytes
        )
    off = block_bytes == 0 or snapshot_bytes == 0
    if not off and (budgets.blocks < smallest.blocks or budgets.snapshots < smallest.snapshots):
        logger.warning(
            "prefix cache: %d + %d bytes (half of the free memory) hold less than one sequence of %d tokens (%d + %d): "
            "long prompts will not be cached",
            budgets.blocks,
            budgets.snapshots,
            info.max_tokens,
            smallest.blocks,
            smallest.snapshots,
        )
    return budgets
