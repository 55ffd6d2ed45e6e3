"""The options of `edgellm quantize`. Heavy modules are imported inside: `--help` is quick."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from edgellm.cli_options import JsonOpt, ThreadsOpt
from edgellm.errors import ConfigError

if TYPE_CHECKING:
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.progress import Progress
    from edgellm.quantize.loss import Error

_MODELOPT: Final = "modelopt"
TEXTS: Final = "JSONL of conversations (messages, tools) or of {text}; or a text file."


def quantize(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint folder, or a Hugging Face repository id.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write; a stopped run goes on in it.")],
    recipe: Annotated[
        str, typer.Option(help="nvfp4 | nvfp4-head (lm_head too) | nvfp4-all (and MTP) | modelopt (NVIDIA's own)")
    ] = "nvfp4",
    calib: Annotated[Path | None, typer.Option(help=f"Texts to calibrate on. {TEXTS}")] = None,
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
    from edgellm.checkpoint.hub import resolve
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.memory_watch import watched_memory
    from edgellm.progress import bars
    from edgellm.quantize.report import print_errors
    from edgellm.quantize.texts import read_texts

    source = Checkpoint.open(resolve(checkpoint, revision=revision, offline=offline))
    longest = min(length, source.spec.max_positions)
    texts = [] if calib is None else [text.ids for text in read_texts(calib, source.path, limit=limit, longest=longest)]
    choices = {
        "only": tuple(only or ()),
        "spare": tuple(spare or ()),
        "weight_only": weight_only,
        "feedback": feedback,
    }
    console = Console(stderr=True)
    with watched_memory() as peak, bars(console) as progress:
        if recipe == _MODELOPT:
            errors = _by_modelopt(source, out, texts, choices, progress)
        else:
            errors = _by_ourselves(source, out, recipe, texts, choices, threads, progress)
    if as_json:
        print(json.dumps([asdict(error) for error in errors]))
    else:
        print_errors(errors, Console())
    for note in [*source.warnings, *_left(recipe, source), _used(texts)]:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(f"wrote {out}; {peak}", markup=False, soft_wrap=True)


def _by_modelopt(
    source: Checkpoint, out: Path, texts: list[list[int]], choices: Mapping[str, Any], progress: Progress
) -> list[Error]:
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.quantize.loss import weight_errors
    from edgellm.quantize.modelopt import quantize_with_modelopt

    if any(choices.values()):
        raise ConfigError("--recipe modelopt takes none of --only, --except, --weight-only and --feedback")
    quantize_with_modelopt(source.path, out, texts, progress=progress)
    return weight_errors(source, Checkpoint.open(out))


def _by_ourselves(
    source: Checkpoint,
    out: Path,
    recipe: str,
    texts: list[list[int]],
    choices: Mapping[str, Any],
    threads: int | None,
    progress: Progress,
) -> list[Error]:
    from dataclasses import replace

    from edgellm.quantize.plan import named_recipe
    from edgellm.quantize.writer import quantize_checkpoint

    chosen = replace(named_recipe(recipe), **choices)
    return quantize_checkpoint(source, out, chosen, texts=texts, threads=threads, progress=progress)


def _left(recipe: str, source: Checkpoint) -> list[str]:
    from edgellm.checkpoint.assembly import some
    from edgellm.quantize.plan import named_recipe, unfit_modules

    shapes = source.spec.expected_tensors()
    left = [] if recipe == _MODELOPT else unfit_modules(named_recipe(recipe), shapes)
    return [f"left as they are, for their columns are no multiple of 16: {some(left)}"] if left else []


def _used(texts: list[list[int]]) -> str:
    if not texts:
        return "not calibrated: no scales of activations and of the KV cache"
    return f"calibrated on {len(texts)} texts of {sum(map(len, texts))} tokens"
