"""KV events as TensorRT-LLM's JSON (`get_kv_cache_events` of its 1.x series), so that its readers can read ours.

Differences, all outside of what those readers look at: `reset` on the event that a picture begins with; `cache_salt`
names a salt by a number of the cache's and never shows it; with snapshots asked for, their events have types of their
own. An `updated` always carries both of its differences: readers take each apart without looking whether it is null
(TensorRT-LLM issue 4666). A last block that is not full is shown, as TensorRT-LLM does; it has fewer tokens.
"""

from __future__ import annotations

from typing import Any

from edgellm.cache.events import Created
from edgellm.server.kv_events.ledger import Changed, Event, Gone, Kept
from edgellm.server.kv_events.mirror import Numbered

DEVICE = 0  # cache level; nothing on a second one is announced as cached


def event_json(numbered: Numbered, window_size: int) -> dict[str, Any]:
    """One event. `window_size`: tokens that attention reaches back, the context here."""
    whole = {"event_id": numbered.number, "data": _data(numbered.event), "window_size": window_size}
    return whole if numbered.reset is None else {**whole, "reset": numbered.reset}


def _data(event: Event) -> dict[str, Any]:
    if isinstance(event, Created):
        return {"type": "created", "num_blocks_per_cache_level": [event.max_blocks, 0]}
    kept = event if isinstance(event, Kept) else event.kept
    return _block(event, kept) if kept.item == "block" else _snapshot(event, kept)


def _block(event: Kept | Gone | Changed, kept: Kept) -> dict[str, Any]:
    if isinstance(event, Gone):
        return {"type": "removed", "block_hashes": [kept.hash]}
    if isinstance(event, Changed):
        return {
            "type": "updated",
            "block_hash": kept.hash,
            "cache_level": _difference(DEVICE, DEVICE),
            "priority": _difference(event.old_priority, kept.priority),
        }
    block = {
        "type": "stored_block",
        "block_hash": kept.hash,
        "tokens": [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in kept.tokens],
        "cache_level": DEVICE,
        "priority": kept.priority,
        **_salt(kept),
    }
    return {"type": "stored", "parent_hash": kept.parent_hash, "blocks": [block]}


def _snapshot(event: Kept | Gone | Changed, kept: Kept) -> dict[str, Any]:
    if isinstance(event, Gone):
        return {"type": "snapshot_removed", "snapshot_hashes": [kept.hash]}
    if isinstance(event, Changed):
        difference = _difference(event.old_priority, kept.priority)
        return {"type": "snapshot_updated", "snapshot_hash": kept.hash, "priority": difference}
    return {
        "type": "snapshot_stored",
        "parent_hash": kept.parent_hash,
        "snapshot_hash": kept.hash,
        "offset": kept.end,
        "priority": kept.priority,
        **_salt(kept),
    }


def _difference(old: int, new: int) -> dict[str, Any]:
    return {"type": "event_diff", "new_value": new, "old_value": old}


def _salt(kept: Kept) -> dict[str, str]:
    return {"cache_salt": f"{kept.namespace:016x}"} if kept.namespace else {}
