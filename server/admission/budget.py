"""What the cache holds and what a program needs of it: KV blocks and recurrent snapshots, which have their own budgets.

What must stay true: needs are whole numbers, so that sums of many neither drift nor depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from edgellm.cache import CacheStats
from edgellm.engine.base import ExecutorInfo
from edgellm.errors import ConfigError


class Need(NamedTuple):
    """Blocks and snapshots."""

    blocks: int
    snapshots: int

    def plus(self, other: Need) -> Need:
        return Need(self.blocks + other.blocks, self.snapshots + other.snapshots)

    def less(self, other: Need) -> Need:
        return Need(self.blocks - other.blocks, self.snapshots - other.snapshots)


NOTHING = Need(0, 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """Capacity of the cache, which admission shares out among programs.

    Attributes:
        block_tokens, block_bytes: of a KV block of all attention layers.
        snapshot_bytes: of a recurrent snapshot.
        total_blocks, total_snapshots: that the budgets hold.
    """

    block_tokens: int
    block_bytes: int
    total_blocks: int
    snapshot_bytes: int
    total_snapshots: int

    @classmethod
    def of_cache(cls, info: ExecutorInfo, cache: CacheStats) -> Self:
        """The budgets that an engine's cache has.

        Raises:
            ConfigError: there is no cache.
        """
        return cls(
            info.block_tokens,
            info.block_bytes,
            cache.block_budget_bytes // max(info.block_bytes, 1),
            info.snapshot_bytes,
            cache.snapshot_budget_bytes // max(info.snapshot_bytes, 1),
        )

    def __post_init__(self) -> None:
        for name in ("block_tokens", "total_blocks", "total_snapshots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: admission needs a cache; must be at least 1, got {getattr(self, name)}")
        for name in ("block_bytes", "snapshot_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must not be negative, got {getattr(self, name)}")

    def share(self, need: Need) -> float:
        """The part of the capacity that a need is: of blocks or of snapshots, whichever is more."""
        return max(need.blocks / self.total_blocks, need.snapshots / self.total_snapshots)

    def bytes(self, need: Need) -> int:
        return need.blocks * self.block_bytes + need.snapshots * self.snapshot_bytes
