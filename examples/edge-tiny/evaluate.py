"""Score edge-tiny on held-out conversations through the edgellm runtime: python evaluate.py [CHECKPOINT] [--limit N]

Every conversation ends before an assistant turn, which the model writes greedily with the full draft tree. Schemas,
names and values are of words that training never used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from edgetiny.scoring import KINDS, Score, evaluate, summarize
from rich.console import Console
from rich.progress import track
from rich.table import Table

from edgellm.checkpoint.hub import resolve
from edgellm.decode.params import SpeculationParams
from edgellm.engine.builder import build_bundle
from edgellm.engine.recipe import load_recipe
from edgellm.models import DEFAULT
from edgellm.runtime.llm import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=DEFAULT, help="folder; default: the one that ships")
    parser.add_argument("--limit", type=int, default=400, help="conversations")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--recipe", default="cpu-f32")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edge-tiny-") as folder:
        bundle = build_bundle(resolve(args.checkpoint), Path(folder) / "bundle", load_recipe(args.recipe))
        tree = SpeculationParams(steps=8, top_k=2, nodes=16)
        with LLM(bundle, slots=1, context=4096, speculation=tree) as llm:
            jobs = [(args.seed, index, KINDS[index % len(KINDS)]) for index in range(args.limit)]
            console = Console(stderr=True)
            scores = [evaluate(llm, *job) for job in track(jobs, "evaluating", console=console)]
    for score in [score for score in scores if not score.right][: args.show]:
        console.print(
            f"[bold]{score.kind}[/] expected {score.expected}\n{score.answer}\n", markup=True, highlight=False
        )
    result = summarize(scores)
    if args.json:
        print(json.dumps(result))
    else:
        _table(result, scores)


def _table(result: dict[str, float | int | None], scores: list[Score]) -> None:
    console = Console()
    figures = Table("figure", "value", title="edge-tiny, held-out conversations")
    for name, value in result.items():
        figures.add_row(name, "-" if value is None else f"{value:.4g}")
    console.print(figures)
    kinds = Table("kind", "conversations", "right")
    for kind in KINDS:
        found = [score.right for score in scores if score.kind == kind]
        if found:
            kinds.add_row(kind, str(len(found)), f"{sum(found) / len(found):.3f}")
    console.print(kinds)


if __name__ == "__main__":
    main()
