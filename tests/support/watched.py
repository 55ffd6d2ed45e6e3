"""A body that notes which of its fields a reader asks for."""

from __future__ import annotations

from typing import Any


class Watched(dict[str, Any]):
    """Notes which keys were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)
