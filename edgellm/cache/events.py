"""What happens to cached blocks and snapshots, as typed events: metrics, the KV event API and routers subscribe.

What must stay true: a parent is stored before its children and removed after them; every change is one event; a
subscriber that fails is dropped and logged, and never disturbs the cache. Hashes name token paths: they chain over
the salt and all tokens up to the end of the block (or the snapshot's offset) and give neither away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

Item = Literal["block", "snapshot"]
RemovalReason = Literal["evicted", "replaced", "cleared", "offloaded"]


@dataclass(frozen=True, slots=True)
class Created:
    """The cache exists, empty, with these limits."""

    block_tokens: int
    max_blocks: int
    max_snapshots: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A block holds tokens [start, end); a snapshot has start == end == its offset."""

    item: Item
    hash: int
    parent_hash: int | None  # of the block before; None at the start of a prompt
    namespace: int  # 0: no salt; otherwise one number per salt
    start: int
    end: int
    tokens: tuple[int, ...]  # the block's tokens; empty for a snapshot
    priority: int


@dataclass(frozen=True, slots=True)
class Removed:
    """`replaced`: the same path is stored again at once as a longer block; `offloaded`: a tier holds it now."""

    item: Item
    hash: int
    start: int
    end: int
    reason: RemovalReason


@dataclass(frozen=True, slots=True)
class Updated:
    """The retention priority was changed. (Its reverting to the default when the duration ends is no event.)"""

    item: Item
    hash: int
    start: int
    end: int
    old_priority: int
    new_priority: int


CacheEvent = Created | Stored | Removed | Updated
Subscriber = Callable[[int, CacheEvent], None]


class EventBus:
    """Calls every subscriber with (number, event), in order, on the thread that changed the cache.

    Numbers count up from 0 without gaps while anyone listens; nothing is built or counted otherwise. Who starts late
    asks the cache what it holds (`PrefixCache.describe`). Subscribe from any thread; keep the callback short (put the
    event on a queue), it runs on the engine's time.
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._next = 0

    @property
    def active(self) -> bool:
        """Whether anyone listens: lets the cache skip building events."""
        return bool(self._subscribers)

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Returns a function that ends the subscription."""
        self._subscribers = (*self._subscribers, callback)
        return lambda: self._drop(callback)

    def emit(self, event: CacheEvent) -> None:
        number = self._next
        self._next += 1
        for callback in self._subscribers:
            try:
                callback(number, event)
            except Exception:
                logger.exception("a subscriber of cache events failed and is dropped")
                self._drop(callback)

    def _drop(self, callback: Subscriber) -> None:
        self._subscribers = tuple(other for other in self._subscribers if other is not callback)
