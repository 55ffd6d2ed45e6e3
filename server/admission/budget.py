"""What the cache holds and what a program needs of it: KV blocks and recurrent snapshots, which have their own budgets.

What must stay true: needs are whole numbers, so that sums of many neither drift nor depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
