"""Write the tokenizer of edge-tiny and a look at its data."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from time import perf_counter

from edgetiny.conversations import KINDS, conversation
from edgetiny.rendering import render
from edgetiny.tokenizer import chat_template, save, train

from edgellm.text.tokenizer import Tokenizer


def write_tokenizer(folder: Path, conversations: int = 20_000, seed: int = 1) -> None:
    """Train the tokenizer on `conversations` of the training split and write it to `folder`."""
    template = chat_template()

    def text(index: int) -> str:
        conv = conversation(seed, index, "train", (index % 5) / 4)
        return template.render(messages=conv["messages"], tools=conv["tools"], add_generation_prompt=False)

    save(train(map(text, range(conversations))), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer; made if it is missing")
    parser.add_argument("--samples", type=Path, help="JSONL file for sample conversations")
    parser.add_argument("--count", type=int, default=200, help="samples per stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=("train", "held_out"), default="train")
    parser.add_argument("--stages", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--kind", choices=KINDS)
    args = parser.parse_args()
    if not (args.tokenizer / "tokenizer.json").is_file():
        write_tokenizer(args.tokenizer)
    tokenizer, template = Tokenizer.load(args.tokenizer), chat_template()
    rows = []
    for stage in args.stages:
        kinds: Counter[str] = Counter()
        lengths, learned = [], 0
        start = perf_counter()
        for index in range(args.count):
            conv = conversation(args.seed, index, args.split, stage, args.kind)
            ids, mask = render(conv, tokenizer, template)
            kinds[conv["kind"]] += 1
            lengths.append(len(ids))
            learned += sum(mask)
            rows.append({"stage": stage, "tokens": len(ids), **conv, "rendered": tokenizer.decode(ids)})
        lengths.sort()
        marks = {f"p{p}": lengths[min(len(lengths) - 1, len(lengths) * p // 100)] for p in (5, 25, 50, 75, 95, 100)}
        rate = args.count / (perf_counter() - start)
        print(f"stage {stage}: {dict(kinds)}\n  tokens {marks}, {learned / sum(lengths):.0%} learned, {rate:.0f}/s")
    if args.samples:
        args.samples.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
