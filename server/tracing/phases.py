"""What a request was doing when: the phases of a turn, the tracks of turns that overlap, and how many were in each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from edgellm.server.tracing.reading import TracedRequest

PhaseName = Literal["held", "queued", "prefill", "decode"]
PHASES: Final[tuple[PhaseName, ...]] = ("held", "queued", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Phase:
    """Start and end in unix milliseconds; never empty, within its turn, one after the other."""

    name: PhaseName
    start_ms: float
    end_ms: float


def phases(turn: TracedRequest) -> list[Phase]:
    """Held by admission, queued for a slot, prefill until the first token, decode until the end.

    Empty where the record has no times but the total; a request that ended before its first token ends in prefill.
    """
    if turn.wait_ms is None:
        return []
    first = turn.ttft_ms
    if first is None and turn.prefill_ms is not None:
        first = turn.wait_ms + turn.prefill_ms
    found: list[Phase] = []
    start = 0.0
    for name, end in zip(PHASES, (turn.held_ms, turn.wait_ms, first, None), strict=True):
        end = turn.total_ms if end is None else min(end, turn.total_ms)
        if end > start:
            found.append(Phase(name, turn.received_ms + start, turn.received_ms + end))
            start = end
    return found


def tracks(turns: Sequence[TracedRequest]) -> list[int]:
    """For each turn, by arrival, the first track on which no earlier turn still runs."""
    ends: list[float] = []
    chosen: list[int] = []
    for turn in turns:
        track = next((at for at, end in enumerate(ends) if end <= turn.received_ms), len(ends))
        ends[track:] = [turn.end_ms, *ends[track + 1 :]]
        chosen.append(track)
    return chosen


def occupancy(turns: Iterable[TracedRequest]) -> list[tuple[float, dict[PhaseName, int]]]:
    """How many requests are in each phase from each moment (unix ms) on at which that changes."""
    changes: dict[float, dict[PhaseName, int]] = {}
    for turn in turns:
        for phase in phases(turn):
            for moment, change in ((phase.start_ms, 1), (phase.end_ms, -1)):
                counts = changes.setdefault(moment, {})
                counts[phase.name] = counts.get(phase.name, 0) + change
    now: dict[PhaseName, int] = dict.fromkeys(PHASES, 0)
    steps: list[tuple[float, dict[PhaseName, int]]] = []
    for moment in sorted(changes):
        now = {name: now[name] + changes[moment].get(name, 0) for name in PHASES}
        steps.append((moment, now))
    return steps
