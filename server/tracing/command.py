"""The options of `edgellm trace`. Heavy modules are imported inside: `--help` is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from edgellm.cli_options import JsonOpt
from edgellm.errors import ConfigError

if TYPE_CHECKING:
    from edgellm.server.tracing.sessions import Session

trace = typer.Typer(help="Look at request traces and turn them into workloads.", no_args_is_help=True)
TracesArg = Annotated[list[Path], typer.Argument(help="Trace files, .jsonl or .jsonl.gz.", metavar="TRACE...")]
_err = Console(stderr=True)


@trace.command()
def timeline(
    traces: TracesArg,
    out: Annotated[Path, typer.Option("-o", "--out", help="JSON to write, for ui.perfetto.dev.")],
    html: Annotated[Path | None, typer.Option(help="Also write a picture: one page that needs nothing else.")] = None,
) -> None:
    """Show what each session did when: waiting, prefill, decode, and the tools between its turns."""
    from edgellm.server.tracing.page import page
    from edgellm.server.tracing.timeline import chrome_trace

    sessions = _load(traces)
    out.write_text(json.dumps(chrome_trace(sessions)), encoding="utf-8")
    _wrote(out)
    if html is not None:
        html.write_text(page(sessions), encoding="utf-8")
        _wrote(html)


@trace.command("to-mooncake")
def to_mooncake(
    traces: TracesArg,
    out: Annotated[Path, typer.Option("-o", "--out", help="JSON lines to write.")],
    form: Annotated[
        str, typer.Option("--format", help="mooncake (arrivals and delays) | agentic (who waited for whom, version 2)")
    ] = "mooncake",
) -> None:
    """Write a trace as a workload for Dynamo's replay, and say the block size to give there."""
    from edgellm.server.tracing.agentic import agentic_rows
    from edgellm.server.tracing.mooncake import mooncake_rows

    forms = {"mooncake": mooncake_rows, "agentic": agentic_rows}
    if form not in forms:
        raise ConfigError(f"format: must be {' or '.join(forms)}, got {form!r}")
    sessions = _load(traces)
    rows, block_tokens = forms[form](sessions)
    out.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    unknown = sum(not turn.output_known for session in sessions for turn in session.turns)
    if unknown:
        _say(f"{unknown} requests ended without a count of their output: output_length 0")
    _wrote(out, f"; blocks of {block_tokens} tokens")


@trace.command()
def summary(traces: TracesArg, as_json: JsonOpt = False) -> None:
    """Figures by session: tokens, cache hits, time to first token, tool gaps, accepted length."""
    from dataclasses import asdict

    from edgellm.server.tracing.summary import figures_of, print_summary

    sessions = _load(traces)
    if as_json:
        rows = [
            {"session_id": one.id, "parent_id": one.parent_id, **asdict(figures_of(one.turns, one.gaps()))}
            for one in sessions
        ]
        print(json.dumps(rows))
    else:
        print_summary(sessions, Console())


def _load(traces: list[Path]) -> list[Session]:
    from edgellm.server.tracing.reading import TraceError, read_traces
    from edgellm.server.tracing.sessions import sessions_of

    found = read_traces(traces)
    for note in found.notes():
        _say(note)
    if not found.requests:
        raise TraceError(f"{', '.join(map(str, traces))}: no requests")
    return sessions_of(found.requests)


def _say(line: str) -> None:
    _err.print(line, markup=False, highlight=False, soft_wrap=True)


def _wrote(path: Path, more: str = "") -> None:
    _say(f"wrote {path}{more}")
