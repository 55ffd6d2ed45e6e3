"""What the router is told of the cache: a router that believes it knows exactly the full blocks that are there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.cache.events import Removed, Stored
from edgellm.cache.keys import salt_digest
from edgellm.decode.params import SamplingParams
from edgellm.runtime.llm import RequestOptions
from edgellm.runtime.types import CacheParams
from edgellm.server.dynamo.kv_events import KvEvents, blocks_in_use, merged, signed

BLOCK = 64
GREEDY = SamplingParams(max_tokens=2)
Path = tuple[str, tuple[int, ...]]


class Router:
    """Believes the messages: full paths (salt, tokens from the start) by the hash of their last block."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}

    def hear(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            hashes = message["block_hashes"]
            assert all(-(2**63) <= number < 2**63 for number in hashes)
            if message["type"] == "removed":
                for number in hashes:
                    del self.paths[number]  # a KeyError: removed what was never told
                continue
            assert message["num_block_tokens"] == [BLOCK] * len(hashes)
            assert len(message["token_ids"]) == BLOCK * len(hashes)
            parent = message["parent_hash"]
            salt, before = (message["cache_salt"] or "", ()) if parent is None else self.paths[parent]
            assert salt == (message["cache_salt"] or "")
            for index, number in enumerate(hashes):
                before = (*before, *message["token_ids"][index * BLOCK : (index + 1) * BLOCK])
                assert number not in self.paths
                self.paths[number] = (salt, before)


def cached(llm: Any) -> set[Path]:
    """Full blocks in the cache, by the path to their ends; of salts that have one of the names below."""
    names = {int.from_bytes(salt_digest(salt)[:8], "big"): salt for salt in ("", "a", "b")}
    router = Router()
    for event in llm.engine.cache.describe():
        if isinstance(event, Stored) and event.item == "block" and event.end - event.start == BLOCK:
            router.hear(list(merged([event], names)))
    return set(router.paths.values())


def run(served: Any, turns: list[tuple[int, int, str]], *, before: int = 0) -> Router:
    """Serve prompts (variant, blocks, salt); the first `before` of them before anyone listens or knows their salts."""
    router = Router()

    async def serve() -> None:
        for number, (variant, blocks, salt) in enumerate(turns):
            if number == before:
                served.events.start()
            if number >= before:
                served.events.learn(salt)
            prompt = [variant + 1 if index >= 100 else 9 for index in range(blocks * BLOCK + 5)]
            await served.llm.agenerate(prompt, GREEDY, RequestOptions(cache=CacheParams(salt=salt)))
            while served.llm.engine.stats().running:  # the answer is out before the last blocks are stored
                await asyncio.sleep(0)
        if before >= len(turns):
            served.events.start()
        await asyncio.sleep(0)
        for salt in ("a", "b"):
            served.events.learn(salt)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        served.events.stop()

    asyncio.run(serve())
    for messages in served.published:
        router.hear(messages)
    return router


def generate_idle(served: Any, cache: CacheParams) -> None:
    """One prompt of three full blocks; the engine is idle afterwards."""
    served.llm.generate([7] * 200, GREEDY, RequestOptions(cache=cache))
    while served.llm.engine.stats().running:
        time.sleep(0.001)


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from(["", "a", "b"])), max_size=12)


@given(TURNS, st.integers(0, 12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_router_knows_what_is_cached(serve: Any, turns: list[tuple[int, int, str]], before: int) -> None:
    """With a cache of 18 blocks, so that some are evicted; listening from the start or later."""
    served = serve(cache_bytes=18 << 16, snapshot_bytes=12 << 18)
    router = run(served, turns, before=before)
    assert set(router.paths.values()) == cached(served.llm)
    served.llm.close()


def test_blocks_of_one_prompt_are_one_message(serve: Any) -> None:
    served = serve()
    router = run(served, [(0, 6, "")])
    told = [message for messages in served.published for message in messages]
    assert sum(len(message["block_hashes"]) for message in told) == len(router.paths) == 6
    described = [event for event in served.llm.engine.cache.describe() if isinstance(event, Stored)]
    full = [event for event in described if event.item == "block" and event.end - event.start == BLOCK]
    (message,) = merged(full, {0: ""})
    assert (len(message["block_hashes"]), message["parent_hash"]) == (6, None)


def test_blocks_wait_for_their_salt(serve: Any) -> None:
    """Prefixes read from disk are under salts of which only the digest is known."""
    served = serve()
    bare = KvEvents(served.llm.engine.cache, BLOCK, served.published.append)
    generate_idle(served, CacheParams(salt="tenant"))

    async def listen() -> None:
        bare.start()
        await asyncio.sleep(0)
        assert served.published == []
        bare.learn("other")
        assert served.published == []
        bare.learn("tenant")
        bare.learn("tenant")
        bare.stop()

    asyncio.run(listen())
    [[message]] = served.published
    assert (message["cache_salt"], len(message["block_hashes"]), message["parent_hash"]) == ("tenant", 3, None)


def test_a_block_that_went_while_it_waited_is_not_told(serve: Any) -> None:
    served = serve()
    generate_idle(served, CacheParams(salt="tenant"))

    async def listen() -> None:
        served.events.start()
        gone = [event for event in served.llm.engine.cache.describe() if isinstance(event, Stored) and event.end == 192]
        [block] = [event for event in gone if event.item == "block"]
        served.events._hear(0, Removed("block", block.hash, block.start, block.end, "evicted"))
        served.events.learn("tenant")
        served.events.stop()

    asyncio.run(listen())
    [[message]] = served.published
    assert len(message["block_hashes"]) == 2


@pytest.mark.parametrize(("number", "shown"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_hashes_are_signed(number: int, shown: int) -> None:
    assert signed(number) == shown


def test_blocks_in_use() -> None:
    assert blocks_in_use([], BLOCK, 10) == 0
    assert blocks_in_use([1, 64, 65], BLOCK, 10) == 4
    assert blocks_in_use([10_000], BLOCK, 10) == 10
