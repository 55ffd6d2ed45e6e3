"""A coding agent's trace at token level, at full length: how much is prefilled, with the scripted executor."""

from __future__ import annotations

import random

import pytest

from edgellm.cache import PrefixCache, PrefixStore, TokenKey, plan_snapshots
from edgellm.engine.base import Chunk
from edgellm.engine.scripted import ScriptedExecutor

SHARED = 298  # tools and system prompt: what the first turns of all conversations have in common
DROPPED = 3  # tokens of the generation prompt that the next turn does not repeat


class Conversation:
    """Each prompt shares all but three tokens with the one before."""

    def __init__(self, number: int, turns: int) -> None:
        self.random = random.Random(number)
        self.prompt = [1 + i % 7 for i in range(SHARED)] + [100 + number, *self.tokens(1000)]
        self.turns = turns
        self.fresh = len(self.prompt)  # tokens that nobody has seen

    def tokens(self, count: int) -> list[int]:
        return self.random.choices(range(200, 4000), k=count)

    def next(self) -> None:
        self.turns -= 1
        kept = len(self.prompt) - DROPPED
        new = 50 + int(self.random.expovariate(1 / 250))
        self.prompt = [*self.prompt[:kept], 150 + self.turns, *self.tokens(new - 1)]
        self.fresh = new


def serve(cache: PrefixCache, prompt: list[int], store: PrefixStore | None = None) -> int:
    """One request on slot 0 of a scripted executor, which checks all contents. Returns prefilled tokens."""
    executor, key = cache.executor, TokenKey(prompt)
    lease = cache.acquire(key, limit=len(key) - 1)
    executor.restore(0, lease.length, lease.blocks, lease.snapshot)
    points = plan_snapshots(len(key), restored=lease.length, matched=lease.matched, stable_lengths=[len(key) - DROPPED])
    at = lease.length
    for point in points:
        executor.advance([Chunk(0, prompt[at : point.offset], False)])
        at = point.offset
        assert cache.store(lease, key, at, slot=0, snapshot=point.kind)
        if store is not None:
            store.maybe_save(key, at, kind=point.kind)
    executor.advance([Chunk(0, prompt[at:], True)])
    cache.release(lease)
    return len(key) - lease.length


@pytest.mark.parametrize(("neighbours", "snapshots"), [(1, 2), (3, 4), (3, 64)])
def test_only_new_tokens_are_prefilled(neighbours, snapshots, tmp_path) -> None:
    def start() -> tuple[ScriptedExecutor, PrefixCache, PrefixStore]:
        executor = ScriptedExecutor(max_tokens=32768, max_chunk=32768)
        info = executor.info
        cache = PrefixCache(
            executor, block_budget_bytes=1000 * info.block_bytes, snapshot_budget_bytes=snapshots * info.snapshot_bytes
        )
        return executor, cache, PrefixStore(cache, tmp_path)

    executor, cache, store = start()
    waiting = [Conversation(number, turns=30) for number in range(9)]
    running: list[Conversation] = []
    prefilled = total = expected = served = 0
    while waiting or running:
        while waiting and len(running) < neighbours:
            running.append(waiting.pop(0))
            served += 1
            expected -= SHARED if served > 2 else 0  # the second leaves the shared point, the others use it
        conversation = running.pop(0)
        total += len(conversation.prompt)
        expected += conversation.fresh
        prefilled += serve(cache, conversation.prompt, store)
        store.flush(1)
        if conversation.turns:
            conversation.next()
            running.append(conversation)
    assert prefilled == expected < total / 10
    cache.check()
    stats = cache.stats()
    assert stats.restored_tokens == total - prefilled
    assert executor.memory()["n_blocks"] == stats.blocks

    store.close()  # a restart: the first conversation hits already
    executor, cache, store = start()
    assert store.load_all().loaded == 1
    assert serve(cache, Conversation(99, turns=0).prompt) == 1001
