"""What the cache did and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgellm.cache.retention import Tally


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Totals since start, and what is held now."""

    lookups: int  # acquire() calls
    hits: int  # those that restored something
    looked_up_tokens: int  # that could have been restored
    restored_tokens: int  # of those, found
    refused: int  # stores that did not fit
    evicted_blocks: int
    evicted_snapshots: int
    leases: int
    blocks: int
    snapshots: int
    block_bytes: int
    snapshot_bytes: int
    block_budget_bytes: int
    snapshot_budget_bytes: int
    block_bytes_by_priority: Mapping[str, int]  # the priorities that are held now, as decimal numbers
    snapshot_bytes_by_priority: Mapping[str, int]
    clipped: int  # raises above the default that the retained share did not allow, each time one was asked for

    @property
    def misses(self) -> int:
        return self.lookups - self.hits

    @property
    def hit_rate(self) -> float | None:
        """Restored tokens of those looked up; None before the first look-up."""
        return self.restored_tokens / self.looked_up_tokens if self.looked_up_tokens else None


def bytes_by_priority(tally: Tally, item_bytes: int, now: float) -> dict[str, int]:
    """Bytes of the tallied items by their priority now, as a decimal number."""
    return {str(priority): count * item_bytes for priority, count in tally.by_priority(now).items()}
