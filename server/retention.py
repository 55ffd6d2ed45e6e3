"""`kv_retention` of a request: how long the cache keeps its tokens, in the terms of TensorRT-LLM's retention config.

    {"token_range_retention_configs": [{"token_start": 0, "token_end": 900, "priority": 80, "duration_ms": 60000}],
     "decode_retention_priority": 30, "decode_duration_ms": null}

Ranges count prompt tokens (see /tokenize or the render route); `token_end` null: to the prompt's end. Where a request
names no ranges, a conversation's system prompt and tools have 90 and its history 35; what is generated has 30 unless it
is named. What must stay true: what one request asks never lowers what another one asked, and a bounded share of the
cache is held above 35.
"""

from __future__ import annotations

from dataclasses import replace

from edgellm.cache.retention import DEFAULT_PRIORITY, HIGHEST_PRIORITY, TokenRange, check_ranges
from edgellm.runtime.types import CacheParams
from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.settings import ServerSettings

_MAX_RANGES = 64
_MAX_MS = 10**12
_RANGE_FIELDS = frozenset({"token_start", "token_end", "priority", "duration_ms"})
_FIELDS = frozenset({"token_range_retention_configs", "decode_retention_priority", "decode_duration_ms"})
_NOT_HERE = {
    "transfer_mode": "there is one way to the second tier, which the server chooses",
    "directory": "the server chooses where the second tier is",
}


def read_cache(fields: Fields, settings: ServerSettings) -> CacheParams:
    """How a request uses the cache: its `kv_retention` and `cache_salt`.

    Raises:
        RequestError: naming the field, e.g. ``kv_retention.token_range_retention_configs[1].token_start``.
    """
    cache = CacheParams(read=settings.prefix_cache, write=settings.prefix_cache, salt=fields.string("cache_salt") or "")
    asked = fields.fields("kv_retention")
    if asked is None:
        return cache
    asked.refuse(_NOT_HERE)
    _only(asked, _FIELDS | _NOT_HERE.keys())
    path = asked.at("token_range_retention_configs")
    given = len(asked.array("token_range_retention_configs") or ())
    if given > _MAX_RANGES:
        raise bad_value(path, f"must have at most {_MAX_RANGES} entries, got {given}")
    return replace(
        cache,
        ranges=check_ranges([_range(entry) for entry in asked.objects("token_range_retention_configs")], path),
        decode_priority=asked.integer("decode_retention_priority", 0, HIGHEST_PRIORITY),
        decode_duration_s=_seconds(asked, "decode_duration_ms"),
    )


def _range(fields: Fields) -> TokenRange:
    _only(fields, _RANGE_FIELDS)
    start = fields.integer("token_start", 0, 2**31)
    priority = fields.integer("priority", 0, HIGHEST_PRIORITY)
    return TokenRange(
        start or 0,
        fields.integer("token_end", 0, 2**31),
        DEFAULT_PRIORITY if priority is None else priority,
        _seconds(fields, "duration_ms"),
    )


def _seconds(fields: Fields, name: str) -> float | None:
    milliseconds = fields.number(name, 0, _MAX_MS, above_low=True)
    return None if milliseconds is None else milliseconds / 1e3


def _only(fields: Fields, known: frozenset[str]) -> None:
    for name in fields.data:
        if name not in known:
            raise unsupported(fields.at(name[:100]), f"unknown; known are {', '.join(sorted(known))}")
