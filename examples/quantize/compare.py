"""Our NVFP4 beside ModelOpt's: python compare.py CHECKPOINT --calib FILE --data FILE [--tool-calls N]

Both quantize the same checkpoint with the same calibration texts; bundles of the results are measured against a float32
bundle of the source on the same other texts. Texts of edge-tiny, from examples/edge-tiny (seeds keep them apart):

    T="--tokenizer ../../edgellm/models/edge-tiny --stages 1"
    python generate.py $T --samples calib.jsonl --count 64
    python generate.py $T --samples data.jsonl --count 100 --split held_out --seed 5
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edgellm.checkpoint.hub import resolve
from edgellm.checkpoint.reader import Checkpoint
from edgellm.decode.params import SpeculationParams
from edgellm.engine.base import Executor
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.engine.registry import open_executor
from edgellm.quantize.loss import weight_errors
from edgellm.quantize.modelopt import quantize_with_modelopt
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.quality import measure_quality
from edgellm.quantize.texts import Text, read_texts
from edgellm.quantize.writer import quantize_checkpoint
from edgellm.runtime.llm import LLM

_SEED = 77  # of the scored conversations, as evaluate.py has it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="folder, shipped name or repository id; not quantized")
    parser.add_argument("--calib", type=Path, required=True, help="texts to calibrate on, as `edgellm eval` reads them")
    parser.add_argument("--data", type=Path, required=True, help="other texts, to measure on")
    parser.add_argument("--calib-limit", type=int, default=64, help="calibration texts")
    parser.add_argument("--limit", type=int, help="texts to measure on (default: all)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a text at most")
    parser.add_argument("--answers", action="store_true", help="measure on the last answer of each conversation alone")
    parser.add_argument("--recipe", default="cpu-nvfp4", help="of the quantized checkpoints' bundles")
    parser.add_argument("--feedback", action="store_true", help="ours with error feedback")
    parser.add_argument("--tool-calls", type=int, default=0, help="score so many conversations (edge-tiny)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: the machine's cores)")
    args = parser.parse_args()
    source = resolve(args.checkpoint)
    read = partial(read_texts, folder=source, longest=args.length)
    calibration = [text.ids for text in read(args.calib, limit=args.calib_limit)]
    texts = read(args.data, limit=args.limit)
    if any(text.ids in calibration for text in texts):
        parser.error("--data repeats texts of --calib")
    recipe = replace(named_recipe("nvfp4"), feedback=args.feedback)
    table = Table(title=f"{source.name}, {len(texts)} texts: {args.recipe} against float32")
    for name in ("", "weight error", "KL", "p99", "top1", "ppl", *(("valid", "exact") if args.tool_calls else ())):
        table.add_column(name, no_wrap=True)
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        folder = Path(scratch)
        quantize_with_modelopt(source, folder / "modelopt", calibration)
        quantize_checkpoint(source, folder / "ours", recipe, texts=calibration, threads=args.threads)
        bundle = build_bundle(source, folder / "source.bundle", load_recipe("cpu-f32"))
        with closing(_executor(bundle, args.length, args.threads)) as reference:
            perplexity = f"{measure_quality(texts, reference, answers=args.answers).perplexity:.4f}"
            table.add_row("source", "", "", "", "", perplexity, *_calls(bundle, args.tool_calls, args.threads))
            for row in ("ours", "modelopt"):
                bundle = build_bundle(folder / row, folder / f"{row}.bundle", load_recipe(args.recipe))
                figures = _quality(bundle, texts, reference, args)
                error = f"{_weight_error(source, folder / row):.5f}"
                table.add_row(row, error, *figures, *_calls(bundle, args.tool_calls, args.threads))
    Console().print(table)


def _executor(bundle: Path, length: int, threads: int | None) -> Executor:
    return open_executor(Bundle.open(bundle), slots=1, context=length, threads=threads)


def _quality(bundle: Path, texts: list[Text], reference: Executor, args: argparse.Namespace) -> list[str]:
    """KL, its 99th percentile, agreement and perplexity."""
    with closing(_executor(bundle, args.length, args.threads)) as executor:
        found = measure_quality(texts, executor, reference, answers=args.answers)
    return [f"{value:.4f}" for value in (found.kl, found.kl_p99, found.top1, found.perplexity)]


def _weight_error(source: Path, quantized: Path) -> float:
    """Sum of squared errors over sum of squares, the mean of all quantized matrices."""
    errors = weight_errors(Checkpoint.open(source), Checkpoint.open(quantized))
    return sum(error.relative**2 for error in errors) / len(errors)


def _calls(bundle: Path, count: int, threads: int | None) -> list[str]:
    """Rates of valid and of exact calls over `count` conversations of edge-tiny; nothing for 0."""
    if not count:
        return []
    sys.path.insert(0, str(Path(__file__).parents[1] / "edge-tiny"))
    from edgetiny.scoring import KINDS, evaluate, summarize

    tree = SpeculationParams(steps=8, top_k=2, nodes=16)
    with LLM(bundle, slots=1, context=4096, threads=threads, speculation=tree) as llm:
        scores = [evaluate(llm, _SEED, index, KINDS[index % len(KINDS)]) for index in range(count)]
    result = summarize(scores)
    return [f"{result['valid_call_rate']:.3f}", f"{result['exact_call_rate']:.3f}"]


if __name__ == "__main__":
    main()
