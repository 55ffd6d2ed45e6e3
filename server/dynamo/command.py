"""The options of `edgellm worker`. Heavy modules are imported inside, so that `--help` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from edgellm.cli_options import (
    BundleArg,
    CacheBytesOpt,
    CacheDirOpt,
    ColdOpt,
    ContextOpt,
    NoSpeculationOpt,
    PrefillChunkOpt,
    SlotsOpt,
    SnapshotBytesOpt,
    ThreadsOpt,
)
from edgellm.text.dialects import DIALECTS


def worker(
    bundle: BundleArg,
    dynamo: Annotated[bool, typer.Option("--dynamo", help="Join NVIDIA Dynamo (extra `dynamo`).")] = False,
    model: Annotated[
        str | None, typer.Option(help="Name that clients ask for (default: the folder's, less .bundle).")
    ] = None,
    alias: Annotated[list[str] | None, typer.Option(help="Further name of the model; may be repeated.")] = None,
    namespace: Annotated[str, typer.Option(help="Dynamo namespace.", envvar="DYN_NAMESPACE")] = "dynamo",
    component: Annotated[str, typer.Option(help="Dynamo component.")] = "backend",
    endpoint: Annotated[str, typer.Option(help="Dynamo endpoint.")] = "generate",
    discovery_dir: Annotated[
        Path | None,
        typer.Option(help="Folder where frontends and workers find each other (default: $DYN_FILE_KV, or Dynamo's)."),
    ] = None,
    model_dir: Annotated[
        Path | None,
        typer.Option(help="Where to put the tokenizer files that the frontend reads (default: the user's cache)."),
    ] = None,
    shutdown_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests have when the worker is told to stop.")
    ] = 10,
    tool_parser: Annotated[
        str | None,
        typer.Option(help=f"How the model writes tool calls (default: as its template shows): {', '.join(DIALECTS)}"),
    ] = None,
    context: ContextOpt = None,
    slots: SlotsOpt = 4,
    threads: ThreadsOpt = None,
    prefill_chunk: PrefillChunkOpt = 512,
    no_speculation: NoSpeculationOpt = False,
    no_cache: ColdOpt = False,
    cache_bytes: CacheBytesOpt = None,
    snapshot_bytes: SnapshotBytesOpt = None,
    cache_dir: CacheDirOpt = None,
) -> None:
    """Serve a bundle as a worker behind the frontend of another system: NVIDIA Dynamo."""
    from edgellm.errors import ConfigError

    if not dynamo:
        raise ConfigError("worker: say --dynamo, the only kind of worker there is")
    import uvloop

    from edgellm.engine.bundle import Bundle
    from edgellm.runtime.llm import LLM
    from edgellm.server.dynamo.settings import WorkerSettings, environment
    from edgellm.server.dynamo.worker import check_installed, run_worker
    from edgellm.server.logs import set_up_logging

    check_installed()
    os.environ.update(environment(os.environ, discovery_dir))
    set_up_logging("text")
    settings = WorkerSettings(
        model=model or bundle.resolve().name.removesuffix(".bundle"),
        aliases=tuple(alias or ()),
        namespace=namespace,
        component=component,
        endpoint=endpoint,
        model_dir=model_dir,
        prefill_chunk=prefill_chunk,
        shutdown_grace_s=shutdown_grace,
    )
    opened = Bundle.open(bundle, verify="quick")
    with LLM(
        bundle,
        context=context,
        slots=slots,
        threads=threads,
        prefill_chunk=prefill_chunk,
        dialect=tool_parser,
        speculation=None if no_speculation else "auto",
        cache_bytes=0 if no_cache else cache_bytes,
        snapshot_bytes=0 if no_cache else snapshot_bytes,
        cache_dir=cache_dir,
    ) as llm:
        uvloop.run(run_worker(llm, opened, settings))
