"""A real cache over the scripted executor, and readers of both streams that believe nothing but what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgellm.cache import PrefixCache
from edgellm.cache.events import Stored
from edgellm.engine.base import Chunk
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.server.kv_events.mirror import KvMirror

WINDOW = 4096


class Conversations:
    """One sequence after another through a small cache."""

    def __init__(self, *, block: int = 4, blocks: int = 1000, snapshots: int = 1000) -> None:
        self.executor = ScriptedExecutor(block_tokens=block, block_bytes=10, snapshot_bytes=100, max_tokens=WINDOW)
        self.block = block
        self.now = 0.0
        self.cache = PrefixCache(
            self.executor,
            block_budget_bytes=10 * blocks,
            snapshot_budget_bytes=100 * snapshots,
            clock=lambda: self.now,
        )

    def turn(self, tokens: Any, *, stop: int | None = None, salt: str = "", priority: int | None = None) -> None:
        """Prefill `tokens`, keep them at `stop` and at their end, each with a snapshot."""
        tokens = tuple(tokens)
        lease = self.cache.acquire(tokens, salt=salt, limit=len(tokens) - 1)
        done = lease.length
        self.executor.restore(0, done, lease.blocks, lease.snapshot)
        for end in sorted({len(tokens), *([] if stop is None else [stop])}):
            if end > done:
                self.executor.advance([Chunk(0, list(tokens[done:end]), True)])
                self.cache.store(lease, tokens, end, slot=0, snapshot="stable")
                done = end
        self.cache.release(lease)
        if priority is not None:
            self.cache.retain(tokens, salt=salt, priority=priority)

    def truth(self) -> dict[int, Stored]:
        """The cached blocks by their hash, from the cache itself."""
        return {e.hash: e for e in self.cache.describe() if isinstance(e, Stored) and e.item == "block"}

    def full(self, *, salted: bool) -> set[tuple[int, int | None, tuple[int, ...], int]]:
        """(hash, parent, tokens, namespace) of every full block."""
        return {
            (e.hash, e.parent_hash, e.tokens, e.namespace)
            for e in self.truth().values()
            if len(e.tokens) == self.block and (salted or e.namespace == 0)
        }

    def snapshots(self) -> dict[int, int]:
        """Offsets of the snapshots by their hash."""
        return {e.hash: e.end for e in self.cache.describe() if isinstance(e, Stored) and e.item == "snapshot"}


class TrtReader:
    """Follows events as TensorRT-LLM writes them."""

    def __init__(self) -> None:
        self.expected: int | None = None
        self.resets: list[str] = []
        self.blocks: dict[int, dict[str, Any]] = {}
        self.parents: dict[int, int | None] = {}
        self.snapshots: dict[int, int] = {}

    def feed(self, text: str) -> None:
        event = json.loads(text)
        if "reset" in event:
            self.resets.append(event["reset"])
            assert event["data"]["type"] == "created"
            self.expected = None
        assert self.expected is None or event["event_id"] == self.expected
        assert event["event_id"] >= 0
        self.expected = event["event_id"] + 1
        assert event["window_size"] == WINDOW
        data = event["data"]
        getattr(self, data["type"])(**{key: value for key, value in data.items() if key != "type"})

    def created(self, num_blocks_per_cache_level: list[int]) -> None:
        assert num_blocks_per_cache_level[0] > 0
        self.blocks, self.parents, self.snapshots = {}, {}, {}

    def stored(self, parent_hash: int | None, blocks: list[dict[str, Any]]) -> None:
        for block in blocks:
            assert block["type"] == "stored_block"
            assert block["cache_level"] == 0
            assert parent_hash is None or parent_hash in self.blocks, "a child before its parent"
            assert block["block_hash"] not in self.blocks
            assert all(token["type"] == "unique_token" for token in block["tokens"])
            assert all(token["token_extra_id"] == 0 for token in block["tokens"])
            self.blocks[block["block_hash"]] = block
            self.parents[block["block_hash"]] = parent_hash
            parent_hash = block["block_hash"]

    def removed(self, block_hashes: list[int]) -> None:
        for hash in block_hashes:
            assert hash not in {self.parents[other] for other in self.blocks}, "a parent before its child"
            del self.blocks[hash]

    def updated(self, block_hash: int, cache_level: dict[str, Any], priority: dict[str, Any]) -> None:
        assert cache_level["new_value"] == cache_level["old_value"] == 0
        assert priority["old_value"] in (self.blocks[block_hash]["priority"], 35)  # to which it reverts unannounced
        self.blocks[block_hash]["priority"] = priority["new_value"]

    def snapshot_stored(self, parent_hash: Any, snapshot_hash: int, offset: int, priority: int, **salt: str) -> None:
        assert salt.keys() <= {"cache_salt"}
        assert snapshot_hash not in self.snapshots
        self.snapshots[snapshot_hash] = offset

    def snapshot_removed(self, snapshot_hashes: list[int]) -> None:
        for hash in snapshot_hashes:
            del self.snapshots[hash]

    def snapshot_updated(self, snapshot_hash: int, priority: dict[str, Any]) -> None:
        assert snapshot_hash in self.snapshots

    def full(self, size: int) -> set[tuple[int, int | None, tuple[int, ...], int]]:
        found = set()
        for hash, block in self.blocks.items():
            tokens = tuple(token["token_id"] for token in block["tokens"])
            if len(tokens) == size:
                found.add((hash, self.parents[hash], tokens, int(block.get("cache_salt", "0"), 16)))
        return found


class VllmReader:
    """Follows batches as vLLM writes them, in either form."""

    def __init__(self) -> None:
        self.expected: int | None = None
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}

    def feed(self, number: bytes, batch: bytes) -> None:
        import msgpack

        assert len(number) == 8
        sequence = int.from_bytes(number, "big")
        ts, events, rank = msgpack.unpackb(batch, strict_map_key=True)
        assert isinstance(ts, float)
        assert rank == 0
        assert events, "an empty batch"
        tags = [event["type"] if isinstance(event, dict) else event[0] for event in events]
        if self.expected is None or sequence != self.expected:
            assert tags[0] == "AllBlocksCleared", f"batch {sequence} instead of {self.expected}"
        self.expected = sequence + 1
        for tag, event in zip(tags, events, strict=True):
            if isinstance(event, dict):
                getattr(self, tag)(**{key: value for key, value in event.items() if key != "type"})
            else:
                getattr(self, tag)(*event[1:])

    def BlockStored(
        self,
        block_hashes: list[int],
        parent_block_hash: int | None,
        token_ids: list[int],
        block_size: int,
        lora_id: None,
        medium: str,
        lora_name: None,
        extra_keys: None = None,
    ) -> None:
        assert (lora_id, medium, lora_name, extra_keys) == (None, "GPU", None, None)
        assert len(token_ids) == block_size * len(block_hashes) > 0
        for at, hash in enumerate(block_hashes):
            assert 0 <= hash < 1 << 64
            assert hash not in self.blocks
            assert parent_block_hash is None or parent_block_hash in self.blocks, "a child before its parent"
            self.blocks[hash] = (parent_block_hash, tuple(token_ids[at * block_size : (at + 1) * block_size]))
            parent_block_hash = hash

    def BlockRemoved(self, block_hashes: list[int], medium: str) -> None:
        assert medium == "GPU"
        assert block_hashes
        for hash in block_hashes:
            del self.blocks[hash]

    def AllBlocksCleared(self) -> None:
        self.blocks.clear()

    def full(self) -> set[tuple[int, int | None, tuple[int, ...], int]]:
        return {(hash, parent, tokens, 0) for hash, (parent, tokens) in self.blocks.items()}


@pytest.fixture
def conversations() -> type[Conversations]:
    return Conversations


@pytest.fixture
def trt_reader() -> type[TrtReader]:
    return TrtReader


@pytest.fixture
def vllm_reader() -> type[VllmReader]:
    return VllmReader


@pytest.fixture
def mirror_of() -> Iterator[Callable[..., KvMirror]]:
    """`mirror_of(cache, keep=…)`; closed at the end."""
    made: list[KvMirror] = []

    def make(cache: PrefixCache, **options: Any) -> KvMirror:
        made.append(KvMirror(cache, **options))
        return made[-1]

    yield make
    for mirror in made:
        mirror.close()
