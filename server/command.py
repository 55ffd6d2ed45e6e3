"""The options of `edgellm serve`. Heavy modules are imported inside, so that `--help` is quick."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

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

if TYPE_CHECKING:
    from edgellm.server.kv_events.vllm import Form

_DIALECTS = ", ".join(DIALECTS)
_API_KEY = "Require this key, as a bearer token or x-api-key; may be repeated. Also from $EDGELLM_API_KEY(S)."


def serve(
    bundle: BundleArg,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.")] = 8080,
    model: Annotated[
        str | None, typer.Option(help="Name that /v1/models reports (default: the folder's, less .bundle).")
    ] = None,
    alias: Annotated[list[str] | None, typer.Option(help="Further name of the model; may be repeated.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help=_API_KEY)] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of keys, one a line.")] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Let web pages of this origin use the API ('*': of all); may be repeated.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM): serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    log_format: Annotated[str, typer.Option(help="text | json")] = "text",
    shutdown_grace: Annotated[
        int, typer.Option(min=0, help="Seconds that running requests have when the server is told to stop.")
    ] = 10,
    tool_parser: Annotated[
        str | None, typer.Option(help=f"How the model writes tool calls (default: as its template shows): {_DIALECTS}")
    ] = None,
    sampling: Annotated[
        str,
        typer.Option(help="Where a request is silent: model (what the checkpoint recommends) | openai (temperature 1)"),
    ] = "model",
    thinking: Annotated[bool, typer.Option(help="Thinking on unless a request says otherwise.")] = False,
    preserve_thinking: Annotated[
        bool,
        typer.Option(help="Earlier turns keep their reasoning in the prompt: agents that send it reuse all of it."),
    ] = False,
    reasoning_field: Annotated[
        str, typer.Option(help="Where answers carry their reasoning: reasoning_content | reasoning")
    ] = "reasoning_content",
    tool_dispatch: Annotated[
        bool, typer.Option(help="Chat streams announce each complete tool call (event tool_call_dispatch).")
    ] = False,
    reasoning_dispatch: Annotated[
        bool, typer.Option(help="Chat streams announce each complete reasoning block (event reasoning_dispatch).")
    ] = False,
    preamble: Annotated[
        list[str] | None,
        typer.Option(
            help="Regular expression of a session's own first line to remove from system prompts; repeatable."
        ),
    ] = None,
    strip_preamble: Annotated[
        bool,
        typer.Option(help="Remove first lines that differ from session to session (Claude Code's and --preamble)."),
    ] = True,
    responses_store: Annotated[
        Path | None, typer.Option(help="File that keeps responses across restarts (default: they are kept in memory).")
    ] = None,
    responses_store_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of kept responses.")] = 64 << 20,
    kv_events_zmq: Annotated[
        str | None, typer.Option(help="Publish KV events here in vLLM's wire format, e.g. tcp://127.0.0.1:5557.")
    ] = None,
    kv_events_replay: Annotated[
        str | None, typer.Option(help="Where missed KV events can be asked for, e.g. tcp://127.0.0.1:5558.")
    ] = None,
    kv_events_topic: Annotated[str, typer.Option(help="First frame of each message.")] = "",
    kv_events_form: Annotated[str, typer.Option(help="array (vLLM up to 0.22) | map (later ones)")] = "array",
    admission: Annotated[
        bool, typer.Option(help="Sessions that do not fit the cache together take turns; see docs/admission.md.")
    ] = False,
    admission_set: Annotated[
        list[str] | None, typer.Option(help="A setting of admission, e.g. pause_threshold=0.9; may be repeated.")
    ] = None,
    offload_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of a second tier, where paused sessions keep their state (0: none).")
    ] = 0,
    offload_dir: Annotated[
        Path | None, typer.Option(help="Keep the second tier in files here (default: in host memory).")
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
    """Serve the OpenAI-compatible endpoint."""
    from edgellm.errors import ConfigError
    from edgellm.runtime.llm import LLM
    from edgellm.server.admission.settings import AdmissionSettings
    from edgellm.server.keys import gather_keys
    from edgellm.server.kv_events.zmq_publisher import ZmqSettings
    from edgellm.server.preamble import BILLING_HEADER, Preambles
    from edgellm.server.run import run_server
    from edgellm.server.settings import ServerSettings
    from edgellm.server.tracing.settings import trace_settings

    if admission_set and not admission:
        raise ConfigError("admission_set: needs --admission")
    if kv_events_replay is not None and kv_events_zmq is None:
        raise ConfigError("kv_events_replay: needs kv_events_zmq")
    if sampling not in ("model", "openai"):
        raise ConfigError(f"sampling: must be model or openai, got {sampling!r}")
    settings = ServerSettings(
        model=model or bundle.resolve().name.removesuffix(".bundle"),
        aliases=tuple(alias or ()),
        host=host,
        port=port,
        api_keys=gather_keys(api_key or (), os.environ, api_key_file),
        cors_origins=tuple(cors_origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_format=log_format,
        shutdown_grace_s=shutdown_grace,
        enable_thinking=thinking,
        preserve_thinking=preserve_thinking,
        reasoning_field=reasoning_field,
        preambles=Preambles.of((BILLING_HEADER, *(preamble or ())) if strip_preamble else ()),
        tool_dispatch=tool_dispatch,
        reasoning_dispatch=reasoning_dispatch,
        kv_events_zmq=None
        if kv_events_zmq is None
        else ZmqSettings(
            kv_events_zmq, replay_endpoint=kv_events_replay, topic=kv_events_topic, form=cast("Form", kv_events_form)
        ),
        request_trace=trace_settings(os.environ),
        admission=AdmissionSettings.of(admission_set or ()) if admission else None,
        responses_store=responses_store,
        responses_store_bytes=responses_store_bytes,
    )
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
        offload_bytes=offload_bytes,
        offload_dir=offload_dir,
    ) as llm:
        if sampling == "model":
            settings = replace(settings, sampling=replace(settings.sampling, **llm.recommended_sampling))
        run_server(llm, settings)
