"""A least-recently-used store of the token ids of text segments, bounded in bytes.

What must stay true: a hit returns exactly what was put; the store never exceeds its budget; any thread may use it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock
from typing import Final

_ENTRY_BYTES: Final = 300  # a dict slot, a string header and an array header, rounded up


class SegmentCache:
    """Segment text → token ids (``array("I")``, not to be changed by the caller)."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._used = 0
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, text: str) -> array[int] | None:
        with self._lock:
            ids = self._entries.get(text)
            if ids is not None:
                self._entries.move_to_end(text)
            return ids

    def put(self, text: str, ids: array[int]) -> None:
        """Keep `ids`; older entries leave until the budget holds. A segment larger than the budget is not kept."""
        cost = _cost(text, ids)
        if cost > self._budget:
            return
        with self._lock:
            if text in self._entries:
                return
            self._entries[text] = ids
            self._used += cost
            while self._used > self._budget:
                self._used -= _cost(*self._entries.popitem(last=False))

    def __len__(self) -> int:
        return len(self._entries)


def _cost(text: str, ids: array[int]) -> int:
    width = 1 if text.isascii() else 4
    return _ENTRY_BYTES + width * len(text) + ids.itemsize * len(ids)
