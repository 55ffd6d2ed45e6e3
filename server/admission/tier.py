"""Where the state of a paused session goes and comes back from: the engine's second tier, seen from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgellm.runtime.engine import Engine


class Tier(Protocol):
    """Moves are done in the order of the calls. They may fail: then the next turn prefills what is missing."""

    async def offload(self, tokens: Sequence[int], salt: str) -> None:
        """Move what the cache holds of a conversation out of it."""
        ...

    async def recall(self, tokens: Sequence[int], salt: str) -> None:
        """Bring back what was moved of the longest path of `tokens`."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTier:
    """Implements `Tier`."""

    engine: Engine

    async def offload(self, tokens: Sequence[int], salt: str) -> None:
        await asyncio.wrap_future(self.engine.offload(tokens, salt=salt))

    async def recall(self, tokens: Sequence[int], salt: str) -> None:
        await asyncio.wrap_future(self.engine.recall(tokens, salt=salt))
