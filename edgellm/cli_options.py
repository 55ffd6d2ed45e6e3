"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BundleArg = Annotated[Path, typer.Argument(help="Engine bundle made by `edgellm build`.", metavar="BUNDLE")]
ContextOpt = Annotated[int | None, typer.Option(help="Context length in tokens (default: the bundle's).")]
SlotsOpt = Annotated[int, typer.Option(min=1, help="Sequences that run at the same time.")]
ThreadsOpt = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
NoSpeculationOpt = Annotated[bool, typer.Option("--no-speculation", help="Decode without drafts.")]
NoCacheOpt = Annotated[bool, typer.Option("--no-cache", help="Do not read or write the prefix cache.")]
PrefillChunkOpt = Annotated[int, typer.Option(min=1, help="Tokens prefilled between decode steps.")]
ColdOpt = Annotated[bool, typer.Option("--no-cache", help="Prefill every prompt from its start.")]
CacheBytesOpt = Annotated[int | None, typer.Option(help="Bytes for cached KV blocks (default: from free memory).")]
SnapshotBytesOpt = Annotated[int | None, typer.Option(help="Bytes for recurrent snapshots.")]
CacheDirOpt = Annotated[Path | None, typer.Option(help="Keep shared prefixes here across restarts.")]
