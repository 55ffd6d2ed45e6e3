"""The sessions of a trace: turns in order, parents, and the time between turns in which the client's tools ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgellm.server.tracing.reading import TracedRequest


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
        return self if self.parent is None else self.parent.root

    def gaps(self) -> list[tuple[float, float]]:
        """Start and end, unix ms, of each time between the end of a turn and the arrival of the next one.

        Turns may overlap: a gap is where none of the session's earlier turns runs. A session without an id has none.
        """
        found: list[tuple[float, float]] = []
        if self.id is None:
            return found
        busy_until = float("inf")
        for turn in self.turns:
            if turn.received_ms > busy_until:
                found.append((busy_until, float(turn.received_ms)))
            busy_until = turn.end_ms if busy_until == float("inf") else max(busy_until, turn.end_ms)
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
    return [shown for session in by_id.values() if session.parent is None for shown in _with_children(session, 0)]


def _above(session: Session | None, wanted: Session) -> bool:
    """Whether `wanted` is `session` or stands above it."""
    while session is not None:
        if session is wanted:
            return True
        session = session.parent
    return False


def _with_children(session: Session, depth: int) -> Iterator[Session]:
    session.depth = depth
    yield session
    for child in session.children:
        yield from _with_children(child, depth + 1)
