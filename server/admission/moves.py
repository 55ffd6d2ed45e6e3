"""The state of sessions on its way between cache and second tier. Used on the server's event loop alone.

What must stay true: a turn starts after every offload that was decided before, and after its own state was brought
back; a move that fails is logged and counted, and fails nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from edgellm.server.admission.program import Decision, Key
from edgellm.server.admission.tier import Tier

log = logging.getLogger("edgellm.server")


@dataclass(frozen=True, slots=True)
class _State:
    """Tokens that a session left; `turn` counts the turns that had begun when they were noted."""

    tokens: array[int]
    turn: int


class Moves:
    """See the module's docstring.

    Attributes:
        offloads, recalls, failed: so far.
    """

    def __init__(self, tier: Tier) -> None:
        self.offloads = 0
        self.recalls = 0
        self.failed = 0
        self._tier = tier
        self._here: dict[Key, _State] = {}  # in the cache, as far as is known
        self._away: dict[Key, _State] = {}  # given to the tier
        self._leaving: set[asyncio.Task[None]] = set()
        self._coming: dict[Key, asyncio.Task[None]] = {}

    def note(self, key: Key, turn: int, last_turn: int, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A turn is over. Of turns that ran beside each other the longest is what the session is known by.

        Args:
            turn, last_turn: its number, and that of the last turn that has begun.
        """
        if key.anonymous:
            return
        self._away.pop(key, None)
        state = self._here.get(key)
        if state is None or state.turn < turn or len(state.tokens) <= len(prompt) + len(answer):
            self._here[key] = _State(array("I", prompt) + array("I", answer), last_turn)

    def decided(self, decision: Decision) -> None:
        """Start what a decision asks for."""
        key = decision.key
        if decision.action == "pause":
            if (state := self._here.pop(key, None)) is not None:
                self._away[key] = state
                task = asyncio.create_task(self._offload(key, state))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        elif decision.action == "forget":
            self._here.pop(key, None)
            self._away.pop(key, None)
        elif decision.details.get("reason") == "acting" and (state := self._away.pop(key, None)) is not None:
            self._here[key] = state
            fetch = self._coming[key] = asyncio.create_task(self._recall(key, state.tokens))
            fetch.add_done_callback(lambda _: self._coming.pop(key, None))

    async def settled(self, key: Key, prompt: Sequence[int]) -> None:
        """Wait until what was decided before is done, and the tier's part of the prompt is in the cache.

        A session that is not known to be in the cache may have been known long ago: the tier is asked for it too.
        """
        pending = [*self._leaving, *filter(None, [self._coming.get(key)])]
        if pending:
            await asyncio.wait(pending)
        if self.offloads and not key.anonymous and key not in self._here:
            await self._recall(key, prompt)
            if (state := self._away.pop(key, None)) is not None:
                self._here[key] = state

    def close(self) -> None:
        for task in (*self._leaving, *self._coming.values()):
            task.cancel()

    async def _offload(self, key: Key, state: _State) -> None:
        try:
            await self._tier.offload(state.tokens, key.salt)
            self.offloads += 1
        except Exception:
            self.failed += 1
            log.warning("session %r: its state could not be offloaded", key.session_id, exc_info=True)

    async def _recall(self, key: Key, tokens: Sequence[int]) -> None:
        try:
            await self._tier.recall(tokens, key.salt)
            self.recalls += 1
        except Exception:
            self.failed += 1
            log.warning("session %r: its state could not be recalled", key.session_id, exc_info=True)
