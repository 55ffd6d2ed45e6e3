"""The sessions of a trace: turns in order, parents, and the gaps between turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgellm.server.tracing.reading import TracedRequest

GapKind = Literal["tools", "user"]


@dataclass(frozen=True, slots=True)
class Gap:
    """From the end of a turn to the arrival of the next, unix ms: the client ran tools, or waited for its user.

    Which of them is inferred from what the next turn's last message was.
    """

    kind: GapKind
    start_ms: float
    end_ms: float


@dataclass(slots=True)
class Session:
    """Attributes:
    id: None holds the requests that came without a session.
    turns: by arrival.
    parent: None also where the parent has no turns in the trace, or where parents lead in a circle.
    depth: how many sessions stand above this one.
    """

    id: str | None
    turns: list[TracedRequest]
    parent: Session | None = None
    children: list[Session] = field(default_factory=list)
    depth: int = 0

    @property
    def parent_id(self) -> str | None:
        return next((turn.parent_id for turn in self.turns if turn.parent_id is not None), None)

    @property
    def root(self) -> Session:
        session = self
        while session.parent is not None:
            session = session.parent
        return session

    def gaps(self) -> list[Gap]:
        """The times between turns. Turns may overlap: a gap is where none of the session's earlier turns runs. A
        session without an id has none."""
        found: list[Gap] = []
        if self.id is None:
            return found
        busy_until = self.turns[0].end_ms
        for turn in self.turns[1:]:
            if turn.received_ms > busy_until:
                kind: GapKind = "user" if turn.trigger == "user_message" else "tools"
                found.append(Gap(kind, busy_until, float(turn.received_ms)))
            busy_until = max(busy_until, turn.end_ms)
        return found


def sessions_of(requests: Sequence[TracedRequest]) -> list[Session]:
    """Sessions in the order to show them: roots by their first turn, each followed by its children."""
    by_id: dict[str | None, Session] = {}
    for request in requests:
        by_id.setdefault(request.session_id, Session(request.session_id, [])).turns.append(request)
    for session in by_id.values():
        parent = by_id.get(session.parent_id) if session.parent_id is not None else None
        if parent is not None and not _above(parent, session):
            session.parent = parent
            parent.children.append(session)
    shown: list[Session] = []
    left = [session for session in reversed(by_id.values()) if session.parent is None]
    while left:
        session = left.pop()
        session.depth = 0 if session.parent is None else session.parent.depth + 1
        shown.append(session)
        left += reversed(session.children)
    return shown


def _above(session: Session | None, wanted: Session) -> bool:
    """Whether `wanted` is `session` or stands above it."""
    while session is not None:
        if session is wanted:
            return True
        session = session.parent
    return False
