"""The figures of a trace by session, and their table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgellm.server.tracing.reading import TracedRequest
from edgellm.server.tracing.sessions import Gap, Session
from edgellm.server.tracing.timeline import session_name


@dataclass(frozen=True, slots=True)
class Figures:
    """Attributes:
    cached_tokens, hit_rate: of the turns that tell; None when none does.
    ttft_ms: mean.
    tools_s: seconds between turns in which tools ran, inferred.
    accepted_length: mean tokens of a verify step, over all steps; None when nothing was verified.
    """

    turns: int
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    hit_rate: float | None
    ttft_ms: float | None
    tools_s: float
    accepted_length: float | None


def figures_of(turns: Sequence[TracedRequest], gaps: Iterable[Gap]) -> Figures:
    """Of one session, or of all when turns and gaps are of all."""
    told = [(turn.cached_tokens, turn.input_tokens) for turn in turns if turn.cached_tokens is not None]
    cached, asked = sum(cached for cached, _ in told), sum(tokens for _, tokens in told)
    ttfts = [turn.ttft_ms for turn in turns if turn.ttft_ms is not None]
    verified = [(turn.accepted_length, turn.verify_steps) for turn in turns if turn.accepted_length is not None]
    steps = sum(steps for _, steps in verified)
    return Figures(
        turns=len(turns),
        input_tokens=sum(turn.input_tokens for turn in turns),
        cached_tokens=cached if told else None,
        output_tokens=sum(turn.output_tokens for turn in turns),
        hit_rate=cached / asked if asked else None,
        ttft_ms=sum(ttfts) / len(ttfts) if ttfts else None,
        tools_s=sum(gap.end_ms - gap.start_ms for gap in gaps if gap.kind == "tools") / 1e3,
        accepted_length=sum(length * steps for length, steps in verified) / steps if steps else None,
    )


def total_figures(sessions: Sequence[Session]) -> Figures:
    turns = [turn for session in sessions for turn in session.turns]
    return figures_of(turns, (gap for session in sessions for gap in session.gaps()))


def print_summary(sessions: Sequence[Session], console: Console) -> None:
    """A row for each session, sub-agents under their parents, and one for all; tokens in, of them cached, and out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("session", overflow="fold")
    for heading in ("turns", "in", "cached", "out", "hits", "TTFT ms", "tools s", "accept"):
        table.add_column(heading, justify="right", no_wrap=True)
    for session in sessions:
        name = "  " * session.depth + escape(session.id if session.id and session.parent else session_name(session))
        table.add_row(name, *_cells(figures_of(session.turns, session.gaps())))
    table.add_section()
    table.add_row("all", *_cells(total_figures(sessions)))
    console.print(table)


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.turns:,}",
        f"{figures.input_tokens:,}",
        "-" if figures.cached_tokens is None else f"{figures.cached_tokens:,}",
        f"{figures.output_tokens:,}",
        "-" if figures.hit_rate is None else f"{figures.hit_rate:.1%}",
        "-" if figures.ttft_ms is None else f"{figures.ttft_ms:,.0f}",
        f"{figures.tools_s:,.1f}",
        "-" if figures.accepted_length is None else f"{figures.accepted_length:.2f}",
    ]
