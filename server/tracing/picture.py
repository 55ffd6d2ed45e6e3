"""A trace as one SVG picture: a row for each session on a common time axis, sub-agents under their parents.

Above the rows a strip shows how many requests waited and ran. Colours are CSS classes, so that the page can be light or
dark. All text from a trace is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from edgellm.server.tracing.phases import PHASES, PhaseName, occupancy, phases, tracks
from edgellm.server.tracing.reading import TracedRequest
from edgellm.server.tracing.sessions import Session
from edgellm.server.tracing.summary import figures_of
from edgellm.server.tracing.timeline import NO_SESSION

WIDTH: Final = 1370
_LEFT: Final = 232  # where time begins
_PLOT: Final = 876
_RIGHT: Final = _LEFT + _PLOT + 14  # where the figures begin
_STRIP: Final = 46  # height of the load strip
_AXIS: Final = 24
_TOP: Final = _STRIP + _AXIS + 14
_BAR: Final = 12  # of one track
_GAP: Final = 10  # between rows
_LONG: Final = 420  # from this height on the axis stands below the rows too
_INDENT: Final = 14
_LABEL_CHARS: Final = 30
_TICKS: Final = 9
_STEPS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5,
                    36e5, 72e5, 144e5, 288e5, 432e5, 864e5)  # fmt: skip


def picture(sessions: Sequence[Session]) -> str:
    """The `<svg>` element of at least one session, `WIDTH` units wide."""
    turns = [turn for session in sessions for turn in session.turns]
    scale = _Scale(min(turn.received_ms for turn in turns), max(turn.end_ms for turn in turns))
    rows: list[str] = []
    tops: dict[int, float] = {}
    y = float(_TOP)
    for number, session in enumerate(sessions):
        numbers = tracks(session.turns)
        height = (max(numbers) + 1) * _BAR
        tops[id(session)] = y
        rows += _row(session, numbers, y, height, scale, number % 2 == 1)
        if session.parent is not None:
            rows.append(_thread(session, tops[id(session.parent)] + _BAR / 2, y + _BAR / 2, scale))
        y += height + _GAP
    return "".join(
        (
            f'<svg viewBox="0 0 {WIDTH} {y + _AXIS:.0f}" role="img" aria-label="Timeline of {len(sessions)} sessions">',
            *_axis(scale, y),
            *_load(turns, scale),
            *rows,
            "</svg>",
        )
    )


class _Scale:
    """Unix milliseconds to x."""

    def __init__(self, start_ms: float, end_ms: float) -> None:
        self.start_ms = start_ms
        self.span_ms = max(end_ms - start_ms, 1.0)

    def x(self, moment: float) -> float:
        return _LEFT + _PLOT * (moment - self.start_ms) / self.span_ms


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    """Above the rows, below them too where they are many, and lines across them."""
    step = next((step for step in _STEPS_MS if scale.span_ms / step <= _TICKS), 864e5 * math.ceil(scale.span_ms / 6e8))
    y = _STRIP + _AXIS
    for number in range(int(scale.span_ms // step) + 1):
        x = scale.x(scale.start_ms + number * step)
        yield f'<path class="grid" d="M{x:.1f} 0V{bottom:.0f}"/>'
        for line in (y - 6, bottom + 14) if bottom > _LONG else (y - 6,):
            yield f'<text class="tick" x="{x:.1f}" y="{line:.0f}">{duration(number * step)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {y}H{_LEFT + _PLOT}"/>'


def duration(ms: float) -> str:
    """Short, for a person: 0, 250 ms, 4.5 s, 2:05 min, 1:02:00 h."""
    if ms < 1e3:
        return f"{ms:.0f} ms" if ms else "0"
    if ms < 6e4:
        return f"{ms / 1e3:.1f}".removesuffix(".0") + " s"
    minutes, seconds = divmod(round(ms / 1e3), 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} h"


def _load(turns: Sequence[TracedRequest], scale: _Scale) -> Iterator[str]:
    """Stacked areas: decode at the bottom, then prefill, queued, held."""
    steps = occupancy(turns)
    most = max((sum(counts.values()) for _, counts in steps), default=0)
    if not most:
        return
    unit = (_STRIP - 8) / most
    below = [0] * len(steps)
    for name in reversed(PHASES):
        above = [under + counts[name] for under, (_, counts) in zip(below, steps, strict=True)]
        if above != below:
            yield f'<path class="{name}" d="{_area(steps, below, above, unit, scale)}"/>'
        below = above
    yield f'<text class="label" x="{_LEFT - 10}" y="16" text-anchor="end">requests at once</text>'
    yield f'<text class="faint" x="{_LEFT - 10}" y="30" text-anchor="end">at most {most}</text>'


def _area(
    steps: Sequence[tuple[float, dict[PhaseName, int]]],
    below: Sequence[int],
    above: Sequence[int],
    unit: float,
    scale: _Scale,
) -> str:
    """A box for each step that is not empty."""
    boxes: list[str] = []
    for at in range(len(steps) - 1):
        if above[at] == below[at]:
            continue
        x, width = scale.x(steps[at][0]), scale.x(steps[at + 1][0]) - scale.x(steps[at][0])
        top, height = _STRIP - above[at] * unit, (above[at] - below[at]) * unit
        boxes.append(f"M{x:.2f} {top:.1f}h{max(width, 0.3):.2f}v{height:.1f}h-{max(width, 0.3):.2f}z")
    return "".join(boxes)


def _row(
    session: Session, numbers: Sequence[int], y: float, height: float, scale: _Scale, shaded: bool
) -> Iterator[str]:
    if shaded:
        yield f'<rect class="shade" x="0" y="{y - _GAP / 2:.0f}" width="{WIDTH}" height="{height + _GAP:.0f}"/>'
    yield from _label(session, y)
    for gap in session.gaps():
        line = f"M{scale.x(gap.start_ms):.2f} {y + _BAR / 2:.0f}H{scale.x(gap.end_ms):.2f}"
        yield f'<path class="{gap.kind}" d="{line}"/>'
    for number, (turn, track) in enumerate(zip(session.turns, numbers, strict=True), 1):
        yield _bar(turn, number, y + track * _BAR, scale)
    yield f'<text class="faint" x="{_RIGHT}" y="{y + 10:.0f}">{_figures(session)}</text>'


def _label(session: Session, y: float) -> Iterator[str]:
    name = session.id or NO_SESSION
    room = max(6, _LABEL_CHARS - 2 * session.depth)
    shown = name if len(name) <= room else f"{name[: room - 6]}…{name[-5:]}"
    x = 8 + _INDENT * min(session.depth, 8)
    kind = "faint" if session.id is None else "label"
    if session.depth:
        yield f'<path class="branch" d="M{x - 8:.0f} {y - 4:.0f}v{_BAR / 2 + 4:.0f}h6"/>'
    orphan = session.parent is None and session.parent_id is not None
    tip = f"{name}\nsub-agent of {session.parent_id}" if session.parent_id is not None else name
    yield (
        f'<text class="{kind}" x="{x}" y="{y + 10:.0f}" data-tip="{escape(tip)}">'
        f"{'↳ ' if orphan else ''}{escape(shown)}</text>"
    )


def _figures(session: Session) -> str:
    figures = figures_of(session.turns, ())
    words = [f"{figures.turns} turn" + "s" * (figures.turns != 1), f"{count(figures.input_tokens)} in"]
    if figures.hit_rate is not None:
        words.append(f"{figures.hit_rate:.0%} cached")
    words.append(f"{count(figures.output_tokens)} out")
    return " · ".join(words)


def count(number: int) -> str:
    """912, 4.1k, 182k, 2.4M"""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            scaled = number / size
            return (f"{scaled:.1f}" if scaled < 10 else f"{scaled:.0f}") + letter
    return str(number)


def _bar(turn: TracedRequest, number: int, y: float, scale: _Scale) -> str:
    """A turn: its phases, each at least as wide as can be seen."""
    left = scale.x(turn.received_ms)
    width = max(scale.x(turn.end_ms) - left, 1.5)
    failed = turn.outcome in ("error", "cancelled") or turn.finish_reason in ("error", "cancelled")
    parts = [f'<rect class="whole" x="{left:.2f}" y="{y + 1:.0f}" width="{width:.2f}" height="{_BAR - 2}"/>']
    for phase in phases(turn):
        x = scale.x(phase.start_ms)
        wide = max(scale.x(phase.end_ms) - x, 0.8)
        parts.append(f'<rect class="{phase.name}" x="{x:.2f}" y="{y + 1:.0f}" width="{wide:.2f}" height="{_BAR - 2}"/>')
    if failed:
        parts.append(f'<path class="failed" d="M{left + width:.2f} {y:.0f}v{_BAR}"/>')
    return f'<g class="turn" tabindex="0" data-tip="{escape(_tip(turn, number))}">{"".join(parts)}</g>'


def _tip(turn: TracedRequest, number: int) -> str:
    lines = [f"turn {number}  ·  {duration(turn.total_ms)}" + (f"  ·  {turn.trigger}" if turn.trigger else "")]
    lines.append("  ".join(f"{phase.name} {duration(phase.end_ms - phase.start_ms)}" for phase in phases(turn)))
    cached = "" if turn.cached_tokens is None else f", {turn.cached_tokens:,} cached"
    lines.append(f"{turn.input_tokens:,} tokens in{cached}")
    out = f"{turn.output_tokens:,} out" if turn.output_known else "output unknown"
    speed = f", {1e3 / turn.itl_ms:.1f}/s" if turn.itl_ms else ""
    accepted = "" if turn.accepted_length is None else f", accepted length {turn.accepted_length:.2f}"
    lines.append(out + speed + accepted)
    lines.append(" ".join(filter(None, (turn.finish_reason or turn.outcome, ", ".join(turn.tools)))))
    if turn.paused:
        lines.append("its session had been paused")
    return "\n".join(line for line in lines if line)


def _thread(session: Session, from_y: float, to_y: float, scale: _Scale) -> str:
    """From a parent's row down to where its sub-agent begins."""
    x = scale.x(session.turns[0].received_ms)
    return f'<path class="thread" d="M{x:.2f} {from_y:.0f}V{to_y:.0f}"/>'
