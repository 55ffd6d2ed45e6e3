"""Draw the curves of a run: python plot.py run/log.jsonl curves.png (needs matplotlib)"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.log.read_text(encoding="utf-8").splitlines()]
    # A resumed run repeats the steps after its checkpoint: the newest counts.
    steps = {line["step"]: line for line in lines if "loss" in line}
    checks = {line["step"]: line for line in lines if "held_out" in line}
    draw([steps[step] for step in sorted(steps)], [checks[step] for step in sorted(checks)], args.out)


def draw(steps: list[dict[str, Any]], checks: list[dict[str, Any]], out: Path) -> None:
    """Loss of training on the left, held-out shares on the right, both over tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    at = [step["tokens"] / 1e6 for step in steps]
    loss.plot(at, _smooth([step["loss"] for step in steps]), label="decoder")
    for n in range(len(steps[0]["mtp"]) if steps else 0):
        loss.plot(at, _smooth([step["mtp"][n] for step in steps]), label=f"draft step {n + 1}", linewidth=0.8)
    loss.set(xlabel="million tokens", ylabel="loss", yscale="log")
    at = [check["tokens"] / 1e6 for check in checks]
    for key, label in (("tokens_right", "tokens"), ("turns_right", "whole turns")):
        accuracy.plot(at, [check["held_out"][key] for check in checks], label=label, linewidth=2)
    for kind in sorted({kind for check in checks for kind in check["held_out"]["kinds"]}):
        shares = [check["held_out"]["kinds"].get(kind) for check in checks]
        accuracy.plot(at, shares, label=kind, linewidth=0.8)
    accuracy.set(xlabel="million tokens", ylabel="held out: predicted", ylim=(0, 1))
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(out, dpi=120)


def _smooth(values: list[float], share: float = 0.05) -> list[float]:
    """Exponential mean."""
    found: list[float] = []
    for value in values:
        found.append(value if not found else found[-1] + share * (value - found[-1]))
    return found


if __name__ == "__main__":
    main()
