"""The options of `edgellm doctor` and `edgellm plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from edgellm.cli_options import JsonOpt, SlotsOpt

_THIS: Final = "this"
_SLOTS: Final = (1, 2, 4, 8, 16)
_DEPTH: Final = 16_384  # tokens behind which the roofline is shown by default


def doctor(
    bundle: Annotated[Path | None, typer.Argument(help="Also check that this bundle fits the machine.")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Say what this machine is, what edgellm would use of it, and what to do about what is missing."""
    from edgellm.jetson.doctor import examine
    from edgellm.jetson.findings import print_findings

    findings = examine(bundle)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        print_findings(findings, Console())
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def plan(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, config.json, or a preset's name.")] = "qwen36-27b",
    device: Annotated[
        str, typer.Option(help="thor | thor-t4000 | spark | orin-agx | this (what is free on this machine)")
    ] = "thor",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="nvfp4 | nvfp4-head-fp8 | nvfp4-head-bf16 | modelopt-mixed | nvfp4-mlp, a recipe's name or TOML file "
            "(default: as the checkpoint stores its weights, else nvfp4)."
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence (default: the model's most).")] = None,
    slots: SlotsOpt = 4,
    snapshots: Annotated[
        int | None, typer.Option(min=0, help="Recurrent snapshots that the cache keeps (default: 8 a sequence).")
    ] = None,
    cached: Annotated[
        int | None, typer.Option(min=0, help="Tokens of prefixes kept beside what runs (default: one context).")
    ] = None,
    memory: Annotated[int | None, typer.Option(min=0, help="Bytes of memory, instead of the device's.")] = None,
    reserve: Annotated[int | None, typer.Option(min=0, help="Bytes left to the system (default: 8 GiB).")] = None,
    depth: Annotated[int, typer.Option(min=0, help="Cached tokens behind which the roofline is computed.")] = _DEPTH,
    drafts: Annotated[int, typer.Option(min=0, help="Draft steps before a verify, for the roofline.")] = 5,
    as_json: JsonOpt = False,
) -> None:
    """Say what serving a model on a device needs, what fits, and how fast decoding can be at most.

    Ends with status 1 and the bytes that are needed when it does not fit.
    """
    from edgellm.cache.budgets import SNAPSHOTS_PER_PATH
    from edgellm.jetson.devices import find_device
    from edgellm.jetson.machine import read_machine
    from edgellm.jetson.memory_plan import SYSTEM_RESERVE, Workload, largest_contexts, plan_memory
    from edgellm.jetson.plan_report import memory_dict, print_memory, print_roofline, roofline, roofline_dict
    from edgellm.jetson.precision import repeated_parts
    from edgellm.jetson.subject import find_subject

    box = None if device == _THIS else find_device(device)
    subject = find_subject(model, recipe)
    spec, precision, shape = subject.spec, subject.precision, subject.recipe
    tokens = context or min(shape.context or spec.max_positions, spec.max_positions)
    load = Workload(
        context=tokens,
        slots=slots,
        snapshots=SNAPSHOTS_PER_PATH * slots if snapshots is None else snapshots,
        cached=tokens if cached is None else cached,
        nodes=shape.tree_nodes,
        chunk=shape.prefill_chunk,
        block_tokens=shape.block_tokens,
        repeated=repeated_parts(shape),
        form="split" if shape.tensorrt is None else shape.tensorrt.form,
    )
    there = memory if memory is not None else read_machine().memory.available if box is None else box.memory_bytes
    sizes = {"memory_bytes": there, "reserve_bytes": SYSTEM_RESERVE if reserve is None else reserve}
    made = plan_memory(spec, precision, load, **sizes)
    contexts = largest_contexts(spec, precision, load, tuple(sorted({*_SLOTS, slots})), **sizes)
    limits = None
    if box is not None:
        limits = roofline(spec, precision, box, context=depth, nodes=shape.tree_nodes, drafts=drafts)
    if as_json:
        found = {
            "model": model,
            "device": device,
            "precision": asdict(precision),
            "memory": memory_dict(made, contexts),
            "roofline": None if limits is None else roofline_dict(limits),
        }
        print(json.dumps(found))
    else:
        console = Console()
        where = "this machine, now" if box is None else box.title
        print_memory(made, contexts, f"{model}, {precision.label}, on {where}", console)
        if limits is not None:
            print_roofline(limits, console)
    made.check()
