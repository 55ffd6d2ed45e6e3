"""A program: a session as admission sees it, its turns, and the decisions that are taken about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgellm.server.admission.budget import NOTHING, Need

Phase = Literal["reasoning", "acting", "paused", "waiting"]
Action = Literal["admit", "queue", "resume", "force", "pause", "mark", "unmark", "demote", "forget", "leave"]
Detail = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Key:
    """Whose program it is: a tenant's session, or one request without a session, which `number` tells from others."""

    session_id: str
    salt: str = ""
    number: int = 0

    @property
    def anonymous(self) -> bool:
        return self.number > 0


@dataclass(slots=True, eq=False)
class Turn:
    """A request of a program.

    Attributes:
        expected: tokens that it is expected to generate; `generated`: those that it has.
        admitted: when it was let run; None: it waits.
        priority: to be added to the request's, once it is admitted.
        paused: it found its program paused.
    """

    key: Key
    prompt: int
    expected: int
    arrived: float
    generated: int = 0
    admitted: float | None = None
    priority: int = 0
    paused: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + max(self.expected, self.generated)


@dataclass(slots=True, eq=False)
class Program:
    """Attributes:
    turns: in flight; those of an active program run, those of a paused one wait.
    need: what it takes of the cache, used or not.
    held: tokens that its last turns left in the cache.
    peak: most tokens of the turns that ended since it last had none.
    idle_since: the end of its last turn.
    paused_since: None while it is active.
    demoted_until: its next turn before this gets a lower priority.
    ended: the client said so; it is forgotten with its last turn.
    """

    key: Key
    idle_since: float
    paused_since: float | None
    turns: list[Turn] = field(default_factory=list)
    steps: int = 0
    need: Need = NOTHING
    held: int = 0
    peak: int = 0
    demoted_until: float = 0.0
    ended: bool = False

    @property
    def active(self) -> bool:
        return self.paused_since is None

    @property
    def tokens(self) -> int:
        """Turns in flight at the same time are counted each: their prompts need not have anything in common."""
        return sum(turn.tokens for turn in self.turns) if self.turns else self.held

    @property
    def phase(self) -> Phase:
        if self.active:
            return "reasoning" if self.turns else "acting"
        return "waiting" if self.turns else "paused"


@dataclass(frozen=True, slots=True)
class Decision:
    """Attributes:
    time: of the scheduler's clock, seconds.
    utilisation: used share of the capacity, after the decision.
    details: the figures and the reason it was taken for.
    """

    time: float
    key: Key
    action: Action
    utilisation: float
    details: Mapping[str, Detail] = field(default_factory=dict)

    @property
    def session_id(self) -> str:
        return self.key.session_id


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A program as it is shown. `share`: of the capacity that it needs, used or not; `marked`: to be paused when
    its turns are over; `age_s`: in its phase."""

    key: Key
    phase: Phase
    steps: int
    tokens: int
    share: float
    marked: bool
    age_s: float
