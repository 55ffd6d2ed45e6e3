"""The options of `edgellm eval`. Heavy modules are imported inside: `--help` is quick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from edgellm.cli_options import BundleArg, JsonOpt, ThreadsOpt
from edgellm.errors import ConfigError
from edgellm.quantize.command import TEXTS

_FEWEST: Final = 8
evaluation = typer.Typer(help="How well a bundle predicts text, alone or against another.", no_args_is_help=True)
DataOpt = Annotated[Path, typer.Option(help=TEXTS)]
LimitOpt = Annotated[int | None, typer.Option(min=1, help="Texts (default: all).")]
LengthOpt = Annotated[int, typer.Option(min=2, help="Tokens of a text at most.")]
AnswersOpt = Annotated[bool, typer.Option("--answers", help="Count the last answer of each conversation alone.")]
GenerateOpt = Annotated[
    int, typer.Option(min=0, help="Tokens to write for each text (8 or more) to measure accepted lengths; 0: none.")
]


@evaluation.command()
def ppl(
    bundle: BundleArg,
    data: DataOpt,
    limit: LimitOpt = None,
    length: LengthOpt = 2048,
    answers: AnswersOpt = False,
    generate: GenerateOpt = 32,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Perplexity of a bundle on texts, and how many tokens each step of its drafting gives."""
    _measure([bundle], data, limit, length, answers, generate, threads, as_json)


@evaluation.command()
def kl(
    bundle: BundleArg,
    against: Annotated[Path, typer.Option(help="Reference bundle, such as the unquantized one.")],
    data: DataOpt,
    limit: LimitOpt = None,
    length: LengthOpt = 2048,
    answers: AnswersOpt = False,
    generate: GenerateOpt = 32,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """KL divergence from a reference bundle, agreement on the most probable token; both perplexities and drafts."""
    _measure([bundle, against], data, limit, length, answers, generate, threads, as_json)


def _measure(
    bundles: Sequence[Path],
    data: Path,
    limit: int | None,
    length: int,
    answers: bool,
    generate: int,
    threads: int | None,
    as_json: bool,
) -> None:
    from contextlib import ExitStack, closing

    from edgellm.engine.bundle import Bundle
    from edgellm.engine.registry import open_executor
    from edgellm.progress import bars
    from edgellm.quantize.quality import accepted_length, measure_quality
    from edgellm.quantize.texts import read_texts
    from edgellm.runtime.llm import LLM

    if 0 < generate < _FEWEST:
        raise ConfigError(f"--generate must be 0 or at least {_FEWEST}: the end of a short answer cuts drafts off")
    opened = [Bundle.open(path) for path in bundles]
    if len({(bundle.path / "tokenizer.json").read_bytes() for bundle in opened}) > 1:
        raise ConfigError("the bundles have different tokenizers")
    longest = min(length, *(bundle.manifest.context for bundle in opened))
    texts = read_texts(data, opened[-1].path, limit=limit, longest=longest)
    with bars(Console(stderr=True)) as progress:
        with ExitStack() as stack:
            executors = [
                stack.enter_context(closing(open_executor(bundle, slots=1, context=longest, threads=threads)))
                for bundle in opened
            ]
            quality = measure_quality(texts, *executors, answers=answers, progress=progress)
        values = {name: value for name, value in asdict(quality).items() if value is not None}
        for name, bundle in zip(("accepted_length", "reference_accepted_length"), opened, strict=False):
            if generate and bundle.manifest.spec.mtp_layers:
                context = min(longest + generate, bundle.manifest.context)
                with LLM(bundle.path, slots=1, context=context, threads=threads) as llm:
                    values[name] = accepted_length(llm, bundle.manifest.speculation, texts, generate, progress)
    if as_json:
        print(json.dumps(values))
    else:
        _show(values)


def _show(values: dict[str, float]) -> None:
    from rich.table import Table

    table = Table("figure", "value")
    for name, value in values.items():
        table.add_row(name, f"{value:.6g}")
    Console().print(table)
