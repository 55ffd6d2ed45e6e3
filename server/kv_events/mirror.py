"""Following a cache from outside its thread: any number of readers, each at its own place in the events.

The engine's thread only puts events on a queue; a thread of the mirror's own applies them. A reader gets a picture of
what is there, then what changed since; the two fit together exactly, because both come from one ledger under one lock.
A reader holds no queue, only its place: one that is too slow finds its place gone (`Behind`), and nobody waits for it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Literal

from edgellm.cache import PrefixCache
from edgellm.cache.events import CacheEvent
from edgellm.server.kv_events.ledger import Event, Ledger

log = logging.getLogger("edgellm.server")

KEEP = 16_384  # events: of a million tokens in blocks of 64, and about 10 MB
_AT_ONCE = 256  # events applied under one hold of the lock

Reset = Literal["start", "gap"]  # why a reader begins with a picture: it named no place, or one that is not kept


@dataclass(frozen=True, slots=True)
class Numbered:
    """`resume` is the place behind this event, to be named when reading on later; None inside a picture."""

    number: int
    event: Event
    resume: str | None
    reset: Reset | None  # set on the event that a picture begins with: forget everything before


class KvMirror:
    """See the module's docstring. Make it on the engine's thread, or while the engine has no request.

    Args:
        keep: past events that a reader may still ask for.
    """

    def __init__(self, cache: PrefixCache, *, keep: int = KEEP) -> None:
        self._ledger = Ledger(keep)
        self._life = secrets.token_hex(4)  # places of another life of the server mean nothing here
        self._lock = threading.Lock()
        self._bells: dict[object, Callable[[], object]] = {}
        self._closed = False
        self._queue: SimpleQueue[CacheEvent | threading.Event | None] = SimpleQueue()
        for event in cache.describe():
            self._ledger.apply(event)
        self._unsubscribe = cache.events.subscribe(lambda _, event: self._queue.put(event))
        self._thread = threading.Thread(target=self._follow, name="edgellm-kv-events", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Nothing will come any more."""
        return self._closed

    def reader(self, *, snapshots: bool = False, resume: str | None = None) -> Reader:
        """A reader that goes on at `resume`, or begins with a picture when that is None or no longer kept."""
        with self._lock:
            feed = self._ledger.everything if snapshots else self._ledger.blocks
            name = f"{self._life}{'s' if snapshots else ''}"
            place = None if resume is None else _number_in(resume, name)
            if place is not None and feed.first <= place + 1 <= feed.next:
                return Reader(self._lock, feed.take, name, place + 1, [], None)
            picture = self._ledger.picture(snapshots=snapshots)
            return Reader(self._lock, feed.take, name, feed.next, picture, "start" if resume is None else "gap")

    def on_change(self, bell: Callable[[], object]) -> Callable[[], None]:
        """Call `bell` on the mirror's thread whenever there is more to read. Returns what ends that.

        It must not block; one that raises is forgotten.
        """
        key = object()
        with self._lock:
            self._bells[key] = bell

        def end() -> None:
            with self._lock:
                self._bells.pop(key, None)

        return end

    def settle(self, timeout_s: float = 5.0) -> bool:
        """Wait until every change that the cache has announced so far can be read."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Stop following; readers can read what there is and see `closed`. Idempotent."""
        self._unsubscribe()
        self._queue.put(None)
        self._thread.join()

    def _follow(self) -> None:
        try:
            while self._apply(self._take()):
                self._ring()
        except Exception:
            log.critical("KV events are no longer followed", exc_info=True)
        self._closed = True
        self._unsubscribe()
        self._ring()

    def _take(self) -> list[CacheEvent | threading.Event | None]:
        """Wait for one, and take what else is there."""
        taken = [self._queue.get()]
        try:
            while len(taken) < _AT_ONCE:
                taken.append(self._queue.get_nowait())
        except Empty:
            pass
        return taken

    def _apply(self, taken: list[CacheEvent | threading.Event | None]) -> bool:
        """False when it is time to stop."""
        settled = []
        try:
            with self._lock:
                for one in taken:
                    if one is None:
                        return False
                    if isinstance(one, threading.Event):
                        settled.append(one)
                    else:
                        self._ledger.apply(one)
            return True
        finally:
            for done in settled:
                done.set()

    def _ring(self) -> None:
        with self._lock:
            bells = list(self._bells.items())
        for key, bell in bells:
            try:
                bell()
            except Exception:  # an event loop that has ended, a closed socket
                log.debug("a reader of KV events is forgotten", exc_info=True)
                with self._lock:
                    self._bells.pop(key, None)


class Reader:
    """One place in a mirror's events; made by `KvMirror.reader`. One thread at a time uses it."""

    def __init__(
        self,
        lock: threading.Lock,
        take: Callable[[int, int], list[Event]],
        name: str,
        number: int,
        picture: list[Event],
        reset: Reset | None,
    ) -> None:
        self.reset = reset
        self._lock = lock
        self._take = take
        self._name = name
        self._number = number
        self._shown = self._show(picture, number - len(picture))

    @property
    def place(self) -> str:
        """Behind the picture and every change that was taken."""
        return f"{self._name}.{self._number - 1}"

    def take(self, most: int) -> list[Numbered]:
        """The next events, in order; empty when there are none yet.

        Raises:
            Behind: the reader was too slow; begin again with a new one.
        """
        if shown := list(islice(self._shown, most)):
            return shown
        with self._lock:
            events = self._take(self._number, most)
        first = self._number
        self._number += len(events)
        return [Numbered(first + at, event, f"{self._name}.{first + at}", None) for at, event in enumerate(events)]

    def _show(self, picture: list[Event], first: int) -> Iterator[Numbered]:
        """The picture's numbers are those just before the first change behind it."""
        for at, event in enumerate(picture):
            last = at == len(picture) - 1
            yield Numbered(first + at, event, self.place if last else None, None if at else self.reset)


def _number_in(place: str, name: str) -> int | None:
    """The number of a place that `Reader.place` gave, if it belongs to the feed `name`."""
    head, _, number = place.rpartition(".")
    return int(number) if head == name and number.isascii() and number.isdigit() and len(number) < 20 else None
