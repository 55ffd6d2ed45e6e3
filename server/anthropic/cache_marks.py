"""`cache_control`: where a client marks a prefix that it will send again.

Every prefix is cached here without being asked; a mark only makes it stay longer. System prompt and tools already have
a higher priority than marks (`cache.retention`), so that a mark in a message, or one for the whole request, is what
counts: it is taken for the whole prompt, with the longest `ttl` of all. What is held above the default is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from edgellm.cache.retention import TokenRange
from edgellm.runtime.types import Request
from edgellm.server.anthropic.turns import blocks
from edgellm.server.fields import Fields, bad_value
from edgellm.text.chat import Rendered

MARKED_PRIORITY: Final = 80
_TTLS: Final = {"5m": 300.0, "1h": 3600.0}


def read_marks(fields: Fields) -> float | None:
    """Seconds for which the conversation's prompt is to be kept; None when nothing asks for it.

    Raises:
        RequestError: naming the mark's field, e.g. ``system[1].cache_control.ttl``.
    """
    for holder in (*_blocks_only(fields, "system"), *fields.objects("tools")):
        _seconds(holder)
    of_messages = [fields]
    for message in fields.objects("messages"):
        for block in _blocks_only(message, "content"):
            of_messages += [block, *_blocks_only(block, "content")]
    return max((found for holder in of_messages if (found := _seconds(holder)) is not None), default=None)


def keep_marked(request: Request, rendered: Rendered, seconds: float | None) -> Request:
    """With the prompt behind its system prompt and tools kept for that long, unless the request says its own ranges."""
    ranges = request.cache.ranges
    if seconds is None or any(item.end is None or item.end > rendered.head_length for item in ranges):
        return request
    marked = TokenRange(rendered.head_length, None, MARKED_PRIORITY, seconds)
    return replace(request, cache=replace(request.cache, ranges=(*ranges, marked)))


def _blocks_only(fields: Fields, name: str) -> Iterator[Fields]:
    if isinstance(fields.data.get(name), list):
        yield from blocks(fields, name)


def _seconds(holder: Fields) -> float | None:
    mark = holder.fields("cache_control")
    if mark is None:
        return None
    if (kind := mark.string("type")) != "ephemeral":
        raise bad_value(mark.at("type"), f"must be 'ephemeral', got {kind!r:.60}")
    ttl = mark.string("ttl") or "5m"
    if ttl not in _TTLS:
        raise bad_value(mark.at("ttl"), f"must be one of {', '.join(_TTLS)}, got {ttl!r:.60}")
    return _TTLS[ttl]
