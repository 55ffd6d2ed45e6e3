"""Results of `bench_gpu` as Markdown, in the form that kernels/BENCH.md has.

What must stay true: a figure stands beside the card, driver, clocks and date that it is of; what was not run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]


def markdown(result: Result) -> str:
    """A section for one run."""
    gpu = result["gpu"]
    lines = [f"## {gpu['name']}, {result['date']}", ""]
    lines += [f"- {line}" for line in _facts(result)]
    parts = (
        ("Parity", _parity(result["parity"])),
        ("Bandwidth", _bandwidth(result)),
        ("Graph replay", _graphs(result["graphs"], result["copy"])),
        ("compute-sanitizer", [f"- {one['check']}: {one['status']}; {one['detail']}" for one in result["sanitizer"]]),
        ("Not run", [f"- {reason}" for reason in result["skipped"]]),
    )
    for title, body in parts:
        if body:
            lines += ["", f"### {title}", *body]
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown lines."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]


def _facts(result: Result) -> list[str]:
    gpu = result["gpu"]
    machine_gpu = result["machine"]["gpu"] or {}
    clocks = [f"{moment}: {_clocks(said)}" for moment, said in result["clocks"].items()]
    return [
        f"{gpu['name']}, sm_{gpu['capability'][0]}{gpu['capability'][1]}, {gpu['multiprocessors']} multiprocessors, "
        f"L2 {gpu['l2_bytes'] / 2**20:.1f} MiB, {gpu['memory_bytes'] / 2**30:.1f} GiB",
        f"driver {machine_gpu.get('driver') or 'unknown'} (CUDA {gpu['cuda_driver']}); binaries: {result['binaries']}",
        f"machine: {result['machine']['summary']}",
        f"clocks: highest {gpu['clock_mhz'] or '?'} MHz, memory {gpu['memory_clock_mhz'] or '?'} MHz",
        *clocks,
        f"command: `{result['command']}`; {result['seconds']:.0f} s; edgellm {result['edgellm']}",
    ]


def _clocks(clocks: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in clocks.items()) or "nvidia-smi does not say"


def _parity(outcomes: Sequence[Result]) -> list[str]:
    if not outcomes:
        return []
    counts = {status: sum(one["status"] == status for one in outcomes) for status in ("ok", "failed", "error")}
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines = [f"{len(outcomes)} cases: {said}. The share of a limit that the worst value takes, by kernel:", ""]
    worst: dict[tuple[str, str], dict[str, float]] = {}
    for one in outcomes:
        for name, value in one["worst"].items():
            by_shape = worst.setdefault((one["kernel"], name), {})
            key = f"{one['shape']} {one['io']}"
            by_shape[key] = max(value, by_shape.get(key, 0.0))
    heads = list(dict.fromkeys(f"{one['shape']} {one['io']}" for one in outcomes))
    rows = [
        [kernel, name, *(f"{shapes[head]:.3g}" if head in shapes else "" for head in heads)]
        for (kernel, name), shapes in worst.items()
    ]
    lines += table(["kernel", "output", *heads], rows)
    wrong = [one for one in outcomes if one["status"] not in ("ok", "skipped")]
    lines += ["", *(f"- {one['shape']} {one['io']}, {one['part']}, {one['kernel']}: {one['detail']}" for one in wrong)]
    return lines if wrong else lines[:-1]


def _bandwidth(result: Result) -> list[str]:
    if not result["bandwidth"]:
        return []
    copies = ", ".join(f"{one['bytes'] / 2**20:.0f} MiB {one['gb_s']['median']:.0f} GB/s" for one in result["copy"])
    rows = []
    for one in result["bandwidth"]:
        ratio, ms = one["ratio"], one["ms"]
        target = "" if one["target"] is None else f"{'met' if ratio['median'] >= one['target'] else 'MISSED'}"
        rows.append(
            [
                one["name"],
                one["detail"],
                f"{1000 * ms['median'] / one['times']:.1f}",
                f"{one['moved'] / one['times'] / 1e6:.2f}",
                f"{one['moved'] / ms['median'] / 1e6:.0f}",
                f"{ratio['median']:.0%} ({ratio['low']:.0%} to {ratio['high']:.0%})",
                f"{one['operations'] / ms['median'] / 1e9:.1f}" if one["operations"] else "",
                target,
            ]
        )
    return [
        f"Device-to-device copies, bytes read and written: {copies}. Medians; in brackets the tenth and ninetieth "
        f"percentile; the target is {result['target']:.0%} of the copy's rate in the same round.",
        "",
        *table(["kernel", "what", "µs", "MB", "GB/s", "of copy", "TFLOP/s", "target"], rows),
    ]


def _graphs(graphs: Sequence[Result], copies: Sequence[Result]) -> list[str]:
    rows = []
    for one in graphs:
        ms, launches = one["ms"]["median"], one["launches"]
        beside = ""
        if one["moved"] and copies:
            floor = one["moved"] / copies[0]["gb_s"]["median"] / 1e6
            beside = f"{floor:.3f} ms at the copy's rate, {1000 * (ms - floor) / launches:.1f} µs a launch beyond"
        rows.append([one["name"], str(launches), f"{ms:.3f}", f"{1000 * ms / launches:.2f}", beside])
    return (
        table(["graph", "launches", "ms", "µs a launch", "bytes of state, KV, capsules, logits"], rows) if rows else []
    )
