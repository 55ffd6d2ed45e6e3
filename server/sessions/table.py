"""The live table of sessions: what each did, for people to look at. It decides nothing. Event loop only.

What must stay true: the table is bounded, by number and by time without a turn; a session with turns in flight stays in
it; every `begin` is matched by one `on_turn`; tenants that use the same id have sessions of their own. Requests without
a session are only counted.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edgellm.server.admission.program import Decision, Key, Phase
from edgellm.server.sessions.identity import Identity
from edgellm.server.turns import TurnRecord

MAX_SESSIONS: Final = 10_000
RETENTION_S: Final = 1800.0
_HELD: Final = frozenset({"queue", "pause"})
_LET_GO: Final = frozenset({"admit", "resume", "force", "forget"})


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Attributes:
    phase: "reasoning" (turns in flight), "acting" (between turns), and where admission holds it, "waiting" or "paused".
    in_flight: turns that run or wait; `turns`: those that ended, `failed` of them with an error.
    prompt_tokens: of the last prompt; `cached_share`: of the last answered prompt, restored from the cache.
    total_prompt_tokens, total_cached_tokens, total_completion_tokens: of all turns.
    accepted_length: mean tokens per verify step of all turns; None: nothing was verified.
    held_s: that admission held its turns.
    first_seen, last_seen: unix seconds.
    """

    session_id: str
    parent_id: str | None
    harness: str
    phase: Phase
    in_flight: int
    turns: int
    failed: int
    tool_calls: int
    prompt_tokens: int
    cached_share: float | None
    total_prompt_tokens: int
    total_cached_tokens: int
    total_completion_tokens: int
    accepted_length: float | None
    held_s: float
    first_seen: float
    last_seen: float


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions now, by phase; since start: those seen and forgotten, and turns with and without a session."""

    reasoning: int
    acting: int
    paused: int
    waiting: int
    seen: int
    forgotten: int
    turns: int
    turns_without_session: int


@dataclass(slots=True)
class _Session:
    identity: Identity
    first_seen: float
    last_seen: float
    in_flight: int = 0
    held: bool = False
    ended: bool = False
    turns: int = 0
    failed: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    cached_share: float | None = None
    total_prompt: int = 0
    total_cached: int = 0
    total_completion: int = 0
    accepted: int = 0
    verify_steps: int = 0
    held_s: float = 0.0

    @property
    def phase(self) -> Phase:
        if self.held:
            return "waiting" if self.in_flight else "paused"
        return "reasoning" if self.in_flight else "acting"


class Sessions:
    """See the module's docstring.

    Args:
        clock: unix seconds.
    """

    def __init__(
        self,
        *,
        max_sessions: int = MAX_SESSIONS,
        retention_s: float = RETENTION_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_sessions = max_sessions
        self._retention_s = retention_s
        self._clock = clock
        self._sessions: OrderedDict[Key, _Session] = OrderedDict()  # the longest unseen first
        self._seen = 0
        self._turns = 0
        self._without_session = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity | None, prompt_tokens: int, *, salt: str = "") -> None:
        """A request was read. `salt`: its tenant's."""
        if identity is None:
            return
        session = self._find(identity, salt)
        session.in_flight += 1
        session.ended = False
        session.prompt_tokens = prompt_tokens

    def on_turn(self, turn: TurnRecord) -> None:
        """It is over. A session that ends with it is forgotten."""
        self._turns += 1
        if turn.identity is None:
            self._without_session += 1
            return
        session = self._find(turn.identity, turn.salt)
        session.in_flight = max(0, session.in_flight - 1)
        session.turns += 1
        session.failed += turn.outcome == "error"
        session.tool_calls += len(turn.tool_calls)
        session.held_s += turn.held_s
        session.ended |= turn.identity.final
        if (usage := turn.usage) is not None:
            session.cached_share = usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0
            session.total_prompt += usage.prompt_tokens
            session.total_cached += usage.cached_tokens
            session.total_completion += usage.completion_tokens
            session.accepted += usage.accepted_tokens
            session.verify_steps += usage.verify_steps
        if session.ended and session.in_flight == 0:
            del self._sessions[Key(turn.identity.session_id, turn.salt)]

    def on_decision(self, decision: Decision) -> None:
        """What admission decided."""
        session = self._sessions.get(decision.key)
        if session is None:
            return
        if decision.action in _HELD:
            session.held = True
        elif decision.action in _LET_GO:
            session.held = False

    def snapshot(self) -> list[SessionRow]:
        """The table, the last seen first."""
        self._expire()
        return [_row(session) for session in reversed(self._sessions.values())]

    def counts(self) -> SessionCounts:
        self._expire()
        phases = Counter(session.phase for session in self._sessions.values())
        return SessionCounts(
            phases["reasoning"],
            phases["acting"],
            phases["paused"],
            phases["waiting"],
            self._seen,
            self._seen - len(self._sessions),
            self._turns,
            self._without_session,
        )

    def _find(self, identity: Identity, salt: str) -> _Session:
        """Its entry, seen now; a new one where there is none."""
        now, key = self._clock(), Key(identity.session_id, salt)
        session = self._sessions.get(key)
        if session is None:
            self._expire()
            if len(self._sessions) >= self._max_sessions:
                self._drop_oldest()
            session = self._sessions[key] = _Session(identity, now, now)
            self._seen += 1
        session.identity = identity
        session.last_seen = now
        self._sessions.move_to_end(key)
        return session

    def _expire(self) -> None:
        latest = self._clock() - self._retention_s
        old: list[Key] = []
        for name, session in self._sessions.items():
            if session.last_seen > latest:
                break
            if session.in_flight == 0:
                old.append(name)
        for name in old:
            del self._sessions[name]

    def _drop_oldest(self) -> None:
        oldest = next((name for name, session in self._sessions.items() if session.in_flight == 0), None)
        if oldest is not None:
            del self._sessions[oldest]


def _row(session: _Session) -> SessionRow:
    return SessionRow(
        session_id=session.identity.session_id,
        parent_id=session.identity.parent_id,
        harness=session.identity.harness,
        phase=session.phase,
        in_flight=session.in_flight,
        turns=session.turns,
        failed=session.failed,
        tool_calls=session.tool_calls,
        prompt_tokens=session.prompt_tokens,
        cached_share=session.cached_share,
        total_prompt_tokens=session.total_prompt,
        total_cached_tokens=session.total_cached,
        total_completion_tokens=session.total_completion,
        accepted_length=1 + session.accepted / session.verify_steps if session.verify_steps else None,
        held_s=session.held_s,
        first_seen=session.first_seen,
        last_seen=session.last_seen,
    )
