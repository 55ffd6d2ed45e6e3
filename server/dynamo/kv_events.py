"""What a worker tells Dynamo's router: which full blocks it has cached, and how much of its memory is in use.

The router hashes the tokens of a block itself; the cache's own hashes only name blocks and tie them to their parents.
What must stay true: only full blocks are told, a parent before its children; the engine's thread does no more than
append to a queue; blocks under a salt are told with it, so they wait here until a request has shown the salt. Beyond
`MAX_SALTS` of them, blocks of further salts are not told: their prompts are routed by load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from edgellm.cache import PrefixCache
from edgellm.cache.events import CacheEvent, Removed, Stored
from edgellm.cache.keys import salt_digest

Message = dict[str, Any]  # an entry of `KvEventPublisher.publish_batch`
MAX_SALTS: Final = 4096
_NAMESPACE_BYTES: Final = 8


class KvEvents:
    """Follows a cache's events and publishes them on the event loop that `start` was called on.

    Args:
        cache: of an engine that is idle while `start` runs.
        block_tokens: tokens of a full block.
        publish: takes a list of messages in order, e.g. `KvEventPublisher.publish_batch`.
    """

    def __init__(self, cache: PrefixCache, block_tokens: int, publish: Callable[[list[Any]], None]) -> None:
        self._cache = cache
        self._block_tokens = block_tokens
        self._publish = publish
        self._queue: deque[Stored | Removed] = deque()
        self._scheduled = False
        self._salts: dict[int, str] = {0: ""}  # by the number that events carry
        self._waiting: dict[int, dict[int, Stored]] = {}  # by namespace and hash: blocks whose salt is not known yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Publish what is cached, and from now on every change."""
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._cache.events.subscribe(self._hear)
        for number, event in enumerate(self._cache.describe()):
            self._hear(number, event)

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._unsubscribe = None

    def learn(self, salt: str) -> None:
        """A request with this salt came: blocks under it can be told. On the event loop."""
        namespace = int.from_bytes(salt_digest(salt)[:_NAMESPACE_BYTES], "big")
        if namespace in self._salts or len(self._salts) > MAX_SALTS:
            return
        self._flush()  # while the salt is not known: parents that wait must not come behind their children
        self._salts[namespace] = salt
        if waiting := self._waiting.pop(namespace, None):
            self._publish(list(merged(waiting.values(), self._salts)))

    def _hear(self, _: int, event: CacheEvent) -> None:
        """On the engine's thread."""
        if not isinstance(event, Stored | Removed) or event.item != "block":
            return
        if event.end - event.start != self._block_tokens:
            return
        self._queue.append(event)
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._scheduled = False  # before the queue is read: what is appended later asks again
        known: list[Stored | Removed] = []
        while self._queue:
            event = self._queue.popleft()
            if isinstance(event, Removed):
                if not any(waiting.pop(event.hash, None) for waiting in self._waiting.values()):
                    known.append(event)
            elif event.namespace in self._salts:
                known.append(event)
            else:
                self._waiting.setdefault(event.namespace, {})[event.hash] = event
        if known:
            self._publish(list(merged(known, self._salts)))


def merged(events: Iterable[Stored | Removed], salts: dict[int, str]) -> Iterable[Message]:
    """Messages of the events, in order; blocks that follow each other on one path, and removals in a row, are one."""
    message: Message = {}
    last: Stored | Removed | None = None
    for event in events:
        if isinstance(event, Removed) and isinstance(last, Removed):
            message["block_hashes"].append(signed(event.hash))
        elif isinstance(event, Stored) and isinstance(last, Stored) and event.parent_hash == last.hash:
            message["token_ids"] += event.tokens
            message["num_block_tokens"].append(len(event.tokens))
            message["block_hashes"].append(signed(event.hash))
        else:
            if message:
                yield message
            message = _message(event, salts)
        last = event
    if message:
        yield message


def _message(event: Stored | Removed, salts: dict[int, str]) -> Message:
    if isinstance(event, Removed):
        return {"type": "removed", "block_hashes": [signed(event.hash)]}
    return {
        "type": "stored",
        "token_ids": list(event.tokens),
        "num_block_tokens": [len(event.tokens)],
        "block_hashes": [signed(event.hash)],
        "parent_hash": None if event.parent_hash is None else signed(event.parent_hash),
        "cache_salt": salts[event.namespace] or None,
    }


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def blocks_in_use(held: Collection[int], block_tokens: int, total: int) -> int:
    """Blocks that requests with so many tokens need, at most `total`; what is only cached gives way to them."""
    return min(sum(-(-tokens // block_tokens) for tokens in held), total)
