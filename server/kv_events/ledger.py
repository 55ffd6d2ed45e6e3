"""What the cache holds, followed from its events, and the last of these events under consecutive numbers.

There are two sequences of numbers (`Feed`): events of blocks, and those of snapshots among them. Numbers start at 0 and
have no gaps; the first event of both is `Created`.

What must stay true: applying a feed's events in order to nothing, or a picture and then the events after it, gives the
same content; a parent comes before its children; memory is bounded by what the cache may hold and by `keep` events.
One thread at a time uses a ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgellm.cache.events import CacheEvent, Created, Item, Removed, Stored
from edgellm.cache.keys import TokenKey, unpack


@dataclass(frozen=True, slots=True)
class Kept:
    """A block with tokens [start, end) is cached; a snapshot has start == end == its offset and no tokens.

    `hash` names the whole path from the prompt's start, under its salt; `parent_hash` is that of the block before
    (None at the start); `namespace` is 0 without a salt, else one number per salt.
    """

    item: Item
    hash: int
    parent_hash: int | None
    namespace: int
    start: int
    end: int
    packed: bytes  # a quarter of the size of a tuple
    priority: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return unpack(self.packed)


@dataclass(frozen=True, slots=True)
class Gone:
    """It is not cached any more."""

    kept: Kept


@dataclass(frozen=True, slots=True)
class Changed:
    """Its priority is another than before."""

    kept: Kept
    old_priority: int


Event = Created | Kept | Gone | Changed


class Behind(Exception):
    """The events asked for are no longer kept."""


class Feed:
    """The last `keep` events of a sequence."""

    def __init__(self, keep: int) -> None:
        self.next = 0  # the number of the next event
        self._keep = keep
        self._ring: list[Event] = []

    @property
    def first(self) -> int:
        """The oldest number that is kept."""
        return self.next - len(self._ring)

    def add(self, event: Event) -> None:
        if len(self._ring) < self._keep:
            self._ring.append(event)
        else:
            self._ring[self.next % self._keep] = event
        self.next += 1

    def take(self, number: int, most: int) -> list[Event]:
        """Events from `number` on.

        Raises:
            Behind: that one is no longer kept.
        """
        if number < self.first:
            raise Behind
        return [self._ring[at % self._keep] for at in range(number, min(self.next, number + most))]


class Ledger:
    """See the module's docstring. `keep`: events of each feed."""

    def __init__(self, keep: int) -> None:
        self.blocks = Feed(keep)
        self.everything = Feed(keep)
        self._created: Created | None = None
        self._items: dict[tuple[Item, int], Kept] = {}  # in the order of storing: a parent before its children

    def apply(self, event: CacheEvent) -> None:
        """Follow one change.

        Raises:
            KeyError: it is about something that is not there: an event was missed.
        """
        if isinstance(event, Created):
            self._created = event
            self.blocks.add(event)
            self.everything.add(event)
            return
        key = (event.item, event.hash)
        change: Event
        if isinstance(event, Stored):
            change = self._items[key] = Kept(
                event.item,
                event.hash,
                event.parent_hash,
                event.namespace,
                event.start,
                event.end,
                TokenKey(event.tokens).data,
                event.priority,
            )
        elif isinstance(event, Removed):
            change = Gone(self._items.pop(key))
        else:
            kept = self._items[key] = replace(self._items[key], priority=event.new_priority)
            change = Changed(kept, event.old_priority)
        self.everything.add(change)
        if event.item == "block":
            self.blocks.add(change)

    def picture(self, *, snapshots: bool) -> list[Event]:
        """Events that lead from nothing to the present content; never more than the feed has had."""
        assert self._created is not None
        items = self._items.values()
        return [self._created, *(kept for kept in items if snapshots or kept.item == "block")]
