"""What happens to cached prefixes, as typed events on a bus: metrics, logs and routers subscribe.

A hash names a token path: it chains over the salt and all tokens up to and including the block's, and gives neither away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """A change of one block or snapshot."""

    action: Literal["stored", "updated", "removed"]
    kind: Literal["block", "snapshot"]
    hash: str  # of the block's path; a snapshot has the hash of the block that holds it
    parent: str  # hash of the block before
    start: int  # token range of the block; a snapshot sits at `end`
    end: int


class EventBus:
    """Calls every subscriber, in order, on the thread that made the change."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[CacheEvent], None]] = []

    def subscribe(self, callback: Callable[[CacheEvent], None]) -> None:
        self._subscribers.append(callback)

    def emit(self, event: CacheEvent) -> None:
        for callback in self._subscribers:
            callback(event)
