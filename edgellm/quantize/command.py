"""The options of `edgellm quantize` and `edgellm eval`. Heavy modules are imported inside: `--help` is quick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from edgellm.cli_options import BundleArg, JsonOpt, ThreadsOpt

if TYPE_CHECKING:
    from edgellm.quantize.quality import Quality

evaluation = typer.Typer(help="How well a bundle predicts text, alone or against another.", no_args_is_help=True)
_TEXTS = "JSONL of conversations (messages, tools) or of {text}; or a text file."
DataOpt = Annotated[Path, typer.Option(help=_TEXTS)]
LimitOpt = Annotated[int | None, typer.Option(min=1, help="Texts (default: all).")]
LengthOpt = Annotated[int, typer.Option(min=2, help="Tokens of a text at most.")]


def quantize(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint folder, or a Hugging Face repository id.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write; a stopped run goes on in it.")],
    recipe: Annotated[str, typer.Option(help="nvfp4 | nvfp4-head (lm_head too) | nvfp4-all (and MTP)")] = "nvfp4",
    calib: Annotated[Path | None, typer.Option(help=f"Texts to calibrate on. {_TEXTS}")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Calibration texts at most.")] = 64,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a calibration text at most.")] = 1024,
    weight_only: Annotated[bool, typer.Option("--weight-only", help="No scales of activations (W4A16).")] = False,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Make up for errors column by column (GPTQ); slow on large models.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help="Quantize these modules alone (name, wildcard, re:…).")] = None,
    spare: Annotated[list[str] | None, typer.Option("--except", help="Leave these modules as they are.")] = None,
    revision: Annotated[str | None, typer.Option(help="Repository revision to pin.")] = None,
    offline: Annotated[bool, typer.Option(help="Use only files that are already downloaded.")] = False,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Write a checkpoint's matrices in NVFP4, in ModelOpt's layout.

    With texts to calibrate on, the scales of activations and of an FP8 KV cache are written too.
    """
    from dataclasses import replace

    from edgellm.checkpoint.hub import resolve
    from edgellm.progress import bars
    from edgellm.quantize.plan import named_recipe
    from edgellm.quantize.report import print_errors
    from edgellm.quantize.writer import quantize_checkpoint

    chosen = replace(
        named_recipe(recipe),
        only=tuple(only or ()),
        spare=tuple(spare or ()),
        weight_only=weight_only,
        feedback=feedback,
    )
    source = resolve(checkpoint, revision=revision, offline=offline)
    texts = [] if calib is None else _calibration_texts(source, calib, limit, length)
    with bars(Console(stderr=True)) as progress:
        errors = quantize_checkpoint(source, out, chosen, texts=texts, threads=threads, progress=progress)
    if as_json:
        print(json.dumps([asdict(error) for error in errors]))
    else:
        print_errors(errors, Console())
    Console(stderr=True).print(f"wrote {out}")


def _calibration_texts(source: Path, file: Path, limit: int, length: int) -> list[list[int]]:
    from edgellm.quantize.texts import token_texts
    from edgellm.text.chat import ChatRenderer
    from edgellm.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(source)
    renderer = ChatRenderer.load(source, tokenizer)
    return list(token_texts(file, tokenizer, renderer, limit=limit, longest=length))


@evaluation.command()
def ppl(
    bundle: BundleArg,
    data: DataOpt,
    limit: LimitOpt = None,
    length: LengthOpt = 2048,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Perplexity of a bundle on texts."""
    _show(_quality([bundle], data, limit, length, threads), as_json=as_json)


@evaluation.command()
def kl(
    bundle: BundleArg,
    against: Annotated[Path, typer.Option(help="Reference bundle, such as the unquantized one.")],
    data: DataOpt,
    limit: LimitOpt = None,
    length: LengthOpt = 2048,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """KL divergence from a reference bundle, agreement on the most probable token, and both perplexities."""
    _show(_quality([bundle, against], data, limit, length, threads), as_json=as_json)


def _quality(bundles: Sequence[Path], data: Path, limit: int | None, length: int, threads: int | None) -> Quality:
    from contextlib import ExitStack, closing

    from edgellm.engine.bundle import Bundle
    from edgellm.engine.registry import open_executor
    from edgellm.quantize.quality import measure_quality
    from edgellm.quantize.texts import token_texts
    from edgellm.text.chat import ChatRenderer
    from edgellm.text.tokenizer import Tokenizer

    opened = [Bundle.open(path) for path in bundles]
    tokenizer = Tokenizer.load(opened[-1].path)
    renderer = ChatRenderer.load(opened[-1].path, tokenizer)
    longest = min(length, *(bundle.manifest.context for bundle in opened))
    with ExitStack() as stack:
        executors = [
            stack.enter_context(closing(open_executor(bundle, slots=1, context=longest, threads=threads)))
            for bundle in opened
        ]
        stack.enter_context(Console(stderr=True).status("measuring"))
        return measure_quality(token_texts(data, tokenizer, renderer, limit=limit, longest=longest), *executors)


def _show(quality: Quality, *, as_json: bool) -> None:
    from rich.table import Table

    values = {name: value for name, value in asdict(quality).items() if value is not None}
    if as_json:
        print(json.dumps(values))
        return
    table = Table("figure", "value")
    for name, value in values.items():
        table.add_row(name, f"{value:.6g}")
    Console().print(table)
