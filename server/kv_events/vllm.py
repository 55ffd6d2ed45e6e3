"""KV events in vLLM's wire form: what a batch holds, as msgpack would pack it.

A batch is [seconds since 1970, [event, …], data-parallel rank]. Source: vLLM's `distributed/kv_events.py` and Dynamo's
reader of it. Two generations: up to vLLM 0.22 an event is an array that begins with its type ("array"); later ones
(vLLM pull request 42892) name their fields ("map").

What must stay true: only full blocks without a salt are told. A partial block cannot be matched by a router, and one
under a salt would be taken for everybody's: its salt cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from edgellm.cache.events import Created
from edgellm.server.kv_events.ledger import Event, Gone, Kept

Form = Literal["array", "map"]
MEDIUM = "GPU"  # the first tier: what a hit needs not fetch


@dataclass(slots=True)
class _Stored:
    """Blocks in a row on one path."""

    parent: int | None
    block_tokens: int
    hashes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def wire(self, form: Form) -> Any:
        if form == "map":
            return {
                "type": "BlockStored",
                "block_hashes": self.hashes,
                "parent_block_hash": self.parent,
                "token_ids": self.tokens,
                "block_size": self.block_tokens,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
            }
        head = ["BlockStored", self.hashes, self.parent, self.tokens, self.block_tokens]
        return [*head, None, MEDIUM, None, None]  # lora_id, medium, lora_name, extra_keys


@dataclass(slots=True)
class _Removed:
    hashes: list[int] = field(default_factory=list)

    def wire(self, form: Form) -> Any:
        if form == "map":
            return {"type": "BlockRemoved", "block_hashes": self.hashes, "medium": MEDIUM}
        return ["BlockRemoved", self.hashes, MEDIUM]


def cleared(form: Form) -> Any:
    """Forget every block."""
    return {"type": "AllBlocksCleared"} if form == "map" else ["AllBlocksCleared"]


def wire_events(events: Iterable[Event], block_tokens: int, form: Form) -> list[Any]:
    """What a router needs of these events, in order; blocks in a row are one event, and so are removals."""
    told: list[_Stored | _Removed] = []
    for event in events:
        if isinstance(event, Created):
            continue
        kept = event if isinstance(event, Kept) else event.kept
        if kept.item != "block" or kept.namespace or kept.end - kept.start != block_tokens:
            continue
        last = told[-1] if told else None
        if isinstance(event, Kept):
            if not isinstance(last, _Stored) or last.hashes[-1] != kept.parent_hash:
                told.append(last := _Stored(kept.parent_hash, block_tokens))
            last.hashes.append(kept.hash)
            last.tokens.extend(kept.tokens)
        elif isinstance(event, Gone):
            if not isinstance(last, _Removed):
                told.append(last := _Removed())
            last.hashes.append(kept.hash)
    return [one.wire(form) for one in told]
