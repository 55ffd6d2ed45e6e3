"""The `edgellm` command. Each command reads its options, calls one library function and prints the result.

Errors of the input (`EdgeLLMError`) end with exit status 1 and one line on stderr; heavy modules are imported inside
the commands, so that `--help` is quick.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from edgellm.cli_options import (
    BundleArg,
    CacheDirOpt,
    ContextOpt,
    JsonOpt,
    NoCacheOpt,
    NoSpeculationOpt,
    SlotsOpt,
    ThreadsOpt,
)
from edgellm.errors import EdgeLLMError
from edgellm.jetson.command import doctor, plan
from edgellm.quantize.command import quantize
from edgellm.quantize.eval_command import evaluation
from edgellm.server.command import serve
from edgellm.server.dynamo.command import worker
from edgellm.server.tracing.command import trace

app = typer.Typer(
    name="edgellm",
    help="Serve coding agents on Qwen3.6-type hybrid models from one edge box.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
err = Console(stderr=True)


def main() -> None:
    """Entry point: turns library errors into one line and status 1."""
    try:
        app()
    except EdgeLLMError as error:
        _complain(str(error))
    except OSError as error:  # of the machine: a full disk, a folder that may not be written
        _complain(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


def _complain(message: str) -> NoReturn:
    err.print(f"error: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1)


@app.command("make-checkpoint")
def make_checkpoint(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    preset: Annotated[str, typer.Option(help="tiny | mid | qwen36-vocab | qwen36-27b | a parity shape.")] = "tiny",
    layers: Annotated[int | None, typer.Option(min=1, help="Decoder layers (default: the preset's).")] = None,
    shards: Annotated[int, typer.Option(min=1, help="Weight files.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of tokenizer files to take.")] = None,
) -> None:
    """Write a random-weight checkpoint with the family's layout and tensor names."""
    from edgellm.checkpoint.synth import make_checkpoint as synth

    sizes: dict[str, Any] = {} if layers is None else {"num_hidden_layers": layers}
    synth(preset, out, seed=seed, tokenizer_dir=tokenizer, shards=shards, **sizes)
    err.print(f"wrote {out}")


@app.command()
def build(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint folder, or a Hugging Face repository id.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Bundle folder to write.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (cpu-f32, cpu-int8, cpu-int4, cpu-nvfp4, cpu-nvfp4-w4a4, qwen3.6-27b-nvfp4-thor, "
            "nvfp4-rtx, nvfp4-rtx-whole) or a TOML file. Default: the target's; for ort-cpu cpu-nvfp4 for a checkpoint "
            "in NVFP4, else cpu-f32."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="ort-cpu | tensorrt (on the device) | tensorrt-rtx (ahead of time).")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Repository revision to pin.")] = None,
    offline: Annotated[bool, typer.Option(help="Use only files that are already downloaded.")] = False,
    force: Annotated[bool, typer.Option(help="Replace an existing bundle.")] = False,
    self_check: Annotated[
        bool, typer.Option(help="Of target tensorrt: compare first tokens with the CPU when it is built.")
    ] = True,
) -> None:
    """Build an engine bundle from a checkpoint."""
    from edgellm.checkpoint.hub import resolve
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.engine.builder import build_bundle, choose_recipe
    from edgellm.memory_watch import watched_memory
    from edgellm.progress import bars

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or a half bundle would stay
    source = Checkpoint.open(resolve(checkpoint, revision=revision, offline=offline))
    name, chosen = choose_recipe(source, recipe, target)
    with watched_memory() as peak, bars(err) as progress:
        build_bundle(source, out, chosen, force=force, progress=progress)
    if chosen.tensorrt is not None:
        from edgellm.engine.trt.engines import LAYERS_FILE, layer_report

        for line in layer_report(out / LAYERS_FILE):
            err.print(line, markup=False, soft_wrap=True)
    for warning in source.warnings:
        err.print(f"note: {warning}", markup=False, soft_wrap=True)
    err.print(f"built {out} by recipe {name}; {peak}", markup=False, soft_wrap=True)
    if self_check and chosen.target == "tensorrt" and chosen.tensorrt is not None and chosen.tensorrt.form != "whole":
        from edgellm.engine.self_check import check_bundle, set_aside

        with err.status("self-check: first tokens on the GPU and on the CPU"):
            try:
                found = check_bundle(out, source)
            except (EdgeLLMError, ValueError) as error:
                raise EdgeLLMError(f"{out} is built but could not be compared with the CPU: {error}") from error
        err.print(
            f"self-check: divergence {found.divergence:.4f} nats (limit {found.limit:.4f}), same best token in "
            f"{found.agreement:.0%} of the rows, {found.drafts:.0%} of the drafts are the CPU's (limit "
            f"{found.least_drafts:.0%}), logits differ by "
            f"{found.largest:.2f} standard deviations at most"
        )
        if not found.passed:
            kept = set_aside(out)
            raise EdgeLLMError(f"{kept} answers otherwise than the CPU: do not use it")


app.command()(quantize)
app.add_typer(evaluation, name="eval")
app.command()(serve)
app.add_typer(trace, name="trace")
app.command()(worker)


@app.command()
def generate(
    bundle: BundleArg,
    prompt: Annotated[str, typer.Argument(help="The user's message (or raw text with --raw); '-' reads stdin.")],
    raw: Annotated[bool, typer.Option(help="Continue the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    seed: Annotated[int, typer.Option()] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on after the end-of-turn token.")] = False,
    thinking: Annotated[bool, typer.Option(help="Let the model think first.")] = False,
    no_speculation: NoSpeculationOpt = False,
    no_cache: NoCacheOpt = False,
    context: ContextOpt = None,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Generate one answer; --json prints token_ids, text and usage."""
    from edgellm.decode.params import SamplingParams
    from edgellm.runtime.llm import LLM, RequestOptions
    from edgellm.runtime.types import CacheParams

    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    with LLM(bundle, context=context, threads=threads, slots=1, speculation=None if no_speculation else "auto") as llm:
        options = RequestOptions(cache=CacheParams(read=not no_cache, write=not no_cache))
        if raw:
            generation = llm.stream(text, sampling, options)
        else:
            generation = llm.stream([{"role": "user", "content": text}], sampling, options, enable_thinking=thinking)
        ids: list[int] = []
        pieces: list[str] = []
        last: Any = None
        for output in generation:
            ids.extend(output.token_ids)
            pieces.append(output.text)
            if not as_json:
                print(output.text, end="", flush=True)
            last = output
    if last.finish_reason == "error":
        raise EdgeLLMError(last.error)
    if as_json:
        print(
            json.dumps(
                {
                    "token_ids": ids,
                    "text": "".join(pieces),
                    "finish_reason": last.finish_reason,
                    "usage": asdict(last.usage),
                }
            )
        )
    else:
        print()
        err.print(f"{asdict(last.usage)}", style="dim")


@app.command()
def bench(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle; without it a random-weight preset is built.")] = None,
    preset: Annotated[str, typer.Option(help="tiny | mid")] = "tiny",
    precision: Annotated[str, typer.Option(help="f32 | int8 | int4, for a preset.")] = "int8",
    depth: Annotated[int, typer.Option(help="Second depth to measure at, in tokens.")] = 8192,
    rounds: Annotated[int, typer.Option(min=3, help="Timed steps per figure.")] = 12,
    threads: ThreadsOpt = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="Instead: what so many streams at once cost the server, without a model.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=2, help="Instead: what so many agents prefill that need three times the cache.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Measure decode, prefill, tree verification, restore and host overhead against memory bandwidth."""
    if sessions is not None:
        from edgellm.server.measure_sessions import measure_sessions, print_sessions

        with err.status("sessions take their turns"):
            found = measure_sessions(sessions)
        print(json.dumps(asdict(found))) if as_json else print_sessions(found, Console())
        return
    if streams is not None:
        from edgellm.server.measure import measure_streams, print_cost

        cost = measure_streams(streams)
        print(json.dumps(asdict(cost))) if as_json else print_cost(cost, Console())
        return
    from edgellm.bench.report import print_table, run_bench

    with err.status("measuring") as status:
        result = run_bench(
            bundle,
            preset=preset,
            precision=precision,
            depth=depth,
            rounds=rounds,
            threads=threads,
            report=status.update,
        )
    if as_json:
        print(json.dumps(result))
    else:
        print_table(result, Console())


@app.command()
def replay(
    target: Annotated[str, typer.Argument(help="Bundle folder or http://host:port of a running server.")],
    trace: Annotated[Path, typer.Option(help="Recorded conversations (agentic_coding_2.5h.jsonl).")],
    conversations: Annotated[int, typer.Option(min=1, help="How many conversations, in file order.")] = 20,
    turns: Annotated[int | None, typer.Option(min=1, help="Turns per conversation (default: all).")] = None,
    interleave: Annotated[int, typer.Option(min=1, help="Conversations in flight, turn by turn in rotation.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Generated tokens per turn at most.")] = 1024,
    context: ContextOpt = None,
    slots: SlotsOpt = 4,
    threads: ThreadsOpt = None,
    no_speculation: NoSpeculationOpt = False,
    cache_dir: CacheDirOpt = None,
    model: Annotated[
        str | None, typer.Option(help="Model name to send to a server (default: the first it lists).")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Send recorded agent turns as the MLPerf harness does and count what had to be prefilled."""
    from edgellm.mlperf.replay import ReplayOptions, print_report, replay_bundle, replay_url
    from edgellm.mlperf.trace import load_trace

    options = ReplayOptions(conversations=conversations, turns=turns, interleave=interleave, max_tokens=max_tokens)
    recorded = load_trace(trace)
    if target.startswith(("http://", "https://")):
        report = replay_url(target, recorded, options, model=model, console=err)
    else:
        from edgellm.runtime.llm import LLM

        with LLM(
            Path(target),
            context=context,
            slots=slots,
            threads=threads,
            speculation=None if no_speculation else "auto",
            cache_dir=cache_dir,
        ) as llm:
            report = replay_bundle(llm, recorded, options, console=err)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        print_report(report, Console())


app.command()(doctor)
app.command()(plan)


if __name__ == "__main__":
    main()
