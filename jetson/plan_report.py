"""What `edgellm plan` says: the memory plan and the roofline of one model on one device, as a dict or as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from edgellm.checkpoint.spec import ModelSpec
from edgellm.jetson.devices import Device
from edgellm.jetson.memory_plan import MemoryPlan
from edgellm.jetson.precision import VARIANTS, Precision
from edgellm.jetson.roofline import (
    GEMM_SHARE,
    REDUCED_VOCABULARY,
    Step,
    VerifyBytes,
    decode_steps,
    draft_bytes,
    milliseconds,
    verify_bytes,
)

LENGTHS: Final = (3.0, 4.0, 4.5, 5.0, 6.0)  # accepted, the bonus token included
TPOT_MS: Final = 14.68  # time per output token that is published for this model and device


@dataclass(frozen=True, slots=True)
class Roofline:
    """Limits of decoding behind `context` tokens, verifying `nodes` nodes after `drafts` draft steps.

    Attributes:
        variants: precision → what its verify moves.
        draft_full, draft_reduced: bytes of a draft step with a head over all, and over some tokens.
        steps: by assumption.
        plain_ms: a step without speculation, at the peak bandwidth.
    """

    device: Device
    context: int
    nodes: int
    drafts: int
    verify: VerifyBytes
    variants: Mapping[str, VerifyBytes]
    draft_full: float
    draft_reduced: float
    steps: tuple[Step, ...]
    plain_ms: float


def roofline(
    spec: ModelSpec, precision: Precision, device: Device, *, context: int, nodes: int, drafts: int
) -> Roofline:
    """Compute all limits; see `edgellm.jetson.roofline` for the formulas."""
    reduced = min(REDUCED_VOCABULARY, spec.vocab)
    plain = verify_bytes(spec, precision, context=context, nodes=1).total
    return Roofline(
        device=device,
        context=context,
        nodes=nodes,
        drafts=drafts,
        verify=verify_bytes(spec, precision, context=context, nodes=nodes),
        variants={name: verify_bytes(spec, one, context=context, nodes=nodes) for name, one in VARIANTS.items()},
        draft_full=draft_bytes(spec, precision, context=context),
        draft_reduced=draft_bytes(spec, precision, context=context, vocabulary=reduced),
        steps=tuple(decode_steps(spec, precision, device, context=context, nodes=nodes, drafts=drafts)),
        plain_ms=milliseconds(plain, device.peak_gb_s),
    )


def memory_dict(plan: MemoryPlan, contexts: Mapping[int, int]) -> dict[str, Any]:
    """JSON-able; all sizes in bytes, `contexts` sequences → largest context."""
    return {
        "workload": asdict(plan.workload),
        "items": [asdict(item) for item in plan.items],
        "needed": plan.needed,
        "memory": plan.memory_bytes,
        "reserve": plan.reserve_bytes,
        "budget": plan.budget,
        "fits": plan.fits,
        "largest_context": plan.largest_context,
        "most_slots": plan.most_slots,
        "most_snapshots": plan.most_snapshots,
        "contexts": {str(slots): context for slots, context in contexts.items()},
        "build": {"needed": plan.build_bytes, "fits": plan.build_fits, "basis": "estimate"},
    }


def roofline_dict(limits: Roofline) -> dict[str, Any]:
    """JSON-able; bytes, milliseconds, tokens per second."""
    peak, cautious = limits.device.peak_gb_s, GEMM_SHARE * limits.device.peak_gb_s

    def moved(verify: VerifyBytes) -> dict[str, Any]:
        total = verify.total
        times = {"ms_peak": milliseconds(total, peak), "ms_cautious": milliseconds(total, cautious)}
        return {"bytes": {**asdict(verify), "total": total}, **times}

    return {
        "device": asdict(limits.device),
        "context": limits.context,
        "nodes": limits.nodes,
        "drafts": limits.drafts,
        "verify": moved(limits.verify),
        "variants": {name: moved(verify) for name, verify in limits.variants.items()},
        "draft": {
            name: {"bytes": size, "ms_peak": milliseconds(size, peak)}
            for name, size in (("full", limits.draft_full), ("reduced", limits.draft_reduced))
        },
        "plain_ms": limits.plain_ms,
        "steps": [
            {
                **asdict(step),
                "ms": step.ms,
                "tokens_per_s": {f"{length:g}": step.tokens_per_s(length) for length in LENGTHS},
                f"accepted_for_tpot_{TPOT_MS}_ms": step.accepted_for(TPOT_MS),
            }
            for step in limits.steps
        ],
    }


def print_memory(plan: MemoryPlan, contexts: Mapping[int, int], title: str, console: Console) -> None:
    """The plan as a table, and what would fit."""
    load = plan.workload
    table = Table("need", "GB", "", "how", title=title)
    for item in plan.items:
        table.add_row(item.name, _gb(item.bytes), "" if item.basis == "computed" else "estimate", item.formula)
    table.add_section()
    table.add_row("needed", _gb(plan.needed), "", f"{plan.needed} bytes")
    table.add_row("there for it", _gb(plan.budget), "", f"{plan.memory_bytes} less {plan.reserve_bytes} for the system")
    table.add_row("left", _gb(plan.budget - plan.needed), "", "negative: does not fit" if not plan.fits else "")
    table.add_section()
    seen = "server stopped; the largest engine, as the builder checks it"
    table.add_row(
        "building the engines", _gb(plan.build_bytes), "estimate", seen if plan.build_fits else f"{seen}: does not fit"
    )
    console.print(table)
    fitting = Table("sequences", "largest context of each")
    for slots, context in contexts.items():
        fitting.add_row(str(slots), f"{context:,}" if context else "none")
    console.print(fitting)
    console.print(
        f"With {load.slots} sequences of {load.context:,} tokens up to {plan.most_snapshots} snapshots fit; with "
        f"{load.snapshots} snapshots up to {plan.most_slots} sequences. Counts are tried up to 4,096.",
        highlight=False,
    )


def print_roofline(limits: Roofline, console: Console) -> None:
    """Three tables: bytes of a verify, the variants, and tokens per second."""
    device, peak = limits.device, limits.device.peak_gb_s
    cautious = GEMM_SHARE * peak
    parts = Table(
        "part", "GB", f"ms at {peak:g} GB/s", title=f"{limits.nodes}-node verify behind {limits.context:,} tokens"
    )
    for name, size in asdict(limits.verify).items():
        parts.add_row(name, _gb(size), f"{milliseconds(size, peak):.2f}")
    parts.add_section()
    parts.add_row("sum", _gb(limits.verify.total), f"{milliseconds(limits.verify.total, peak):.1f}")
    for name, size in (
        ("draft step, full head", limits.draft_full),
        ("draft step, reduced head", limits.draft_reduced),
    ):
        parts.add_row(name, _gb(size), f"{milliseconds(size, peak):.2f}")
    console.print(parts)
    variants = Table("variant", "GB", f"ms at {peak:g}", f"ms at {cautious:.0f} GB/s", title="the same by precision")
    for name, verify in limits.variants.items():
        total = verify.total
        times = (f"{milliseconds(total, rate):.1f}" for rate in (peak, cautious))
        variants.add_row(f"{name} ({VARIANTS[name].label})", _gb(total), *times)
    console.print(variants)
    heads = [f"L={length:g}" for length in LENGTHS]
    title = f"tokens/s by accepted length L, {limits.drafts} draft steps, {device.title}"
    steps = Table("assumption", "step ms", *heads, f"L for {TPOT_MS} ms a token", title=title)
    for step in limits.steps:
        rates = (f"{step.tokens_per_s(length):.1f}" for length in LENGTHS)
        steps.add_row(step.label, f"{step.ms:.1f}", *rates, f"{step.accepted_for(TPOT_MS):.2f}")
    console.print(steps)
    console.print(
        f"Without speculation: {limits.plain_ms:.1f} ms, {1000 / limits.plain_ms:.1f} tokens/s at most. Limits by "
        f"arithmetic, nothing here was measured. Device: {device.source}.",
        highlight=False,
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.3f}"
