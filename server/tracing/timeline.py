"""A trace as Chrome Trace Event JSON, for ui.perfetto.dev: a process for each session, turns and gaps as its slices.

Format: Chromium's "Trace Event Format": complete events (X, ts and dur in microseconds), metadata (M), counters (C).
Times count from the first request's arrival. Slices of one track never cross, as the format demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from edgellm.server.tracing.phases import PHASES, occupancy, phases, tracks
from edgellm.server.tracing.reading import TracedRequest
from edgellm.server.tracing.sessions import Session

ChromeEvent = dict[str, Any]
NO_SESSION: Final = "without a session"
_SERVER: Final = 0  # process of the counters
_GAPS: Final = 0  # thread of the gaps between turns; turns are on 1, and where they overlap on 2, …


def chrome_trace(sessions: Sequence[Session]) -> dict[str, Any]:
    """The JSON object of a trace's sessions, in their order."""
    turns = sorted((turn for session in sessions for turn in session.turns), key=lambda turn: turn.received_ms)
    start = turns[0].received_ms if turns else 0
    events: list[ChromeEvent] = [*_named(_SERVER, "server", 0), *_counters(turns, start)]
    for pid, session in enumerate(sessions, 1):
        events += _named(pid, session_name(session), pid)
        events += _session(pid, session, start)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"start_unix_ms": start}}


def session_name(session: Session) -> str:
    """The session's id, for a sub-agent with its parent's."""
    if session.id is None:
        return NO_SESSION
    return session.id if session.parent_id is None else f"{session.id} (of {session.parent_id})"


def figures(turn: TracedRequest) -> dict[str, str | int | float | bool]:
    """What is shown of a turn beside its times."""
    found: dict[str, str | int | float | bool | None] = {
        "request": turn.request_id,
        "model": turn.model,
        "trigger": turn.trigger,
        "input_tokens": turn.input_tokens,
        "cached_tokens": turn.cached_tokens,
        "output_tokens": turn.output_tokens if turn.output_known else None,
        "ttft_ms": turn.ttft_ms,
        "avg_itl_ms": turn.itl_ms,
        "accepted_length": turn.accepted_length,
        "finish_reason": turn.finish_reason,
        "tools": ", ".join(turn.tools) or None,
        "outcome": turn.outcome,
        "paused": turn.paused or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _named(pid: int, name: str, order: int) -> list[ChromeEvent]:
    return [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}},
    ]


def _session(pid: int, session: Session, start: int) -> Iterator[ChromeEvent]:
    numbers = tracks(session.turns)
    for track in range(max(numbers) + 1):
        name = "turns" if track == 0 else f"turns at the same time {track + 1}"
        yield {"ph": "M", "pid": pid, "tid": track + 1, "name": "thread_name", "args": {"name": name}}
    for number, (turn, track) in enumerate(zip(session.turns, numbers, strict=True), 1):
        tid = track + 1
        yield _slice(pid, tid, f"turn {number}", turn.received_ms, turn.end_ms, start, "turn", figures(turn))
        for phase in phases(turn):
            yield _slice(pid, tid, phase.name, phase.start_ms, phase.end_ms, start, "phase", {})
    gaps = session.gaps()
    if gaps:
        yield {"ph": "M", "pid": pid, "tid": _GAPS, "name": "thread_name", "args": {"name": "between turns"}}
    for gap in gaps:
        yield _slice(pid, _GAPS, gap.kind, gap.start_ms, gap.end_ms, start, "gap", {"inferred": True})


def _counters(turns: Sequence[TracedRequest], start: int) -> Iterator[ChromeEvent]:
    for moment, counts in occupancy(turns):
        args = {name: counts[name] for name in PHASES}
        yield {"ph": "C", "pid": _SERVER, "tid": 0, "name": "requests", "ts": _us(moment, start), "args": args}


def _slice(
    pid: int, tid: int, name: str, begin: float, end: float, start: int, category: str, args: dict[str, Any]
) -> ChromeEvent:
    ts = _us(begin, start)
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category,
        "ts": ts, "dur": _us(end, start) - ts, "args": args,
    }  # fmt: skip


def _us(moment: float, start: int) -> int:
    return round((moment - start) * 1e3)
