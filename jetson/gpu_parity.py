"""Every kernel on the GPU against its reference in NumPy, on the shapes of a tiny model and of the 27B one.

The GPU runs every kernel at its full shape. References are sequential: where one would take minutes (attention and the
delta rule over a prefill chunk) it is asked for some heads, and for some rows, of the same inputs. What must stay true:
no case stops the next one; outputs are poisoned first, buffers stand between guards, inputs must come back unchanged,
and a second run, which replays a captured graph, must give the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Array, Launch
from edgellm.errors import EdgeLLMError
from edgellm.jetson.gpu_device import Arena, Bench, needed_bytes, poison
from edgellm.kernels.attention import ATTN_PREFILL, TREE_ATTN_PARTIAL, TREE_ATTN_REDUCE
from edgellm.kernels.catalog import device_profiles
from edgellm.kernels.gdn import GDN_PREFILL
from edgellm.kernels.inputs import Arrays
from edgellm.kernels.kernel_inputs import kernel_inputs
from edgellm.kernels.nvrtc import CompileError
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, Kernel, empty_tensors
from edgellm.kernels.tolerance import LIMITS, Limit

_IDLE_ROWS: Final = 3  # of a step, behind those that mean something
_SAMPLED_ROWS: Final = 4  # of a prefill chunk: at its start and middle of one KV head, at its end of all


@dataclass(frozen=True, slots=True)
class Shape:
    """A model whose kernels are compared.

    Attributes:
        tokens: of the longest context; `context` of them are committed when a step begins.
    """

    name: str
    spec: ModelSpec
    types: tuple[Io, ...]
    tokens: int
    context: int

    @classmethod
    def of(cls, preset: str, types: tuple[Io, ...], tokens: int, context: int) -> Shape:
        return cls(preset, ModelSpec.from_config(PRESETS[preset].config), types, tokens, context)


# A context that ends inside of a tile, behind which a prefill chunk of 1024 rows has room.
TINY: Final = Shape.of("tiny", ("bf16", "f16", "f32"), tokens=2048, context=709)
LARGE: Final = Shape.of("qwen36-27b", ("bf16",), tokens=4096, context=2985)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel as one part of the device path launches it."""

    shape: Shape
    part: str
    kernel: Kernel
    sizes: Sizes

    @property
    def label(self) -> str:
        return f"{self.shape.name:<10} {self.part:<22} {self.kernel.name:<17} {self.sizes.io}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        status: "ok", "failed" (a difference), "error" (it did not run) or "skipped".
        worst: the largest difference of each output, as a share of its limit.
        detail: what is wrong.
    """

    shape: str
    part: str
    kernel: str
    io: Io
    status: str
    worst: dict[str, float]
    detail: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "worst": {name: min(value, 1e30) for name, value in self.worst.items()}}


def parity_cases(shapes: Sequence[Shape]) -> list[Case]:
    """Each kernel of each profile once for its sizes."""
    found: dict[tuple[Kernel, Sizes], Case] = {}
    for shape in shapes:
        for io in shape.types:
            for profile in device_profiles(shape.spec, shape.tokens):
                sizes = replace(profile.sizes, io=io)
                found.setdefault((profile.kernel, sizes), Case(shape, profile.part, profile.kernel, sizes))
    return list(found.values())


def arena_bytes(cases: Sequence[Case]) -> int:
    """That the largest case takes."""
    return max((needed_bytes(case.kernel, case.sizes) for case in cases), default=0)


def run_case(bench: Bench, arena: Arena, case: Case, seed: int = 0) -> Outcome:
    """Run and compare one case. Only errors of the GPU's or the driver's making are caught."""
    began = time.perf_counter()

    def outcome(status: str, worst: dict[str, float], detail: str = "") -> Outcome:
        passed = time.perf_counter() - began
        return Outcome(
            case.shape.name, case.part, case.kernel.name, case.sizes.io, status, worst, detail, round(passed, 2)
        )

    try:
        tensors = case_inputs(case, seed)
        made, again, whole = _launched(bench, arena, case, tensors)
    except (EdgeLLMError, CompileError) as error:
        return outcome("error", {}, str(error)[:500])
    worst = compared(case, tensors, made)
    problems = [
        f"{name} differs" + ("" if np.isinf(value) else f" by {value:.3g} times its limit")
        for name, value in worst.items()
        if not value <= 1
    ]
    problems += [] if whole else ["it wrote outside of its buffers"]
    problems += [
        f"it changed its input {param.name}"
        for param in case.kernel.params
        if param.role == "in" and made[param.name].tobytes() != tensors[param.name].tobytes()
    ]
    unequal = _unequal(case, tensors, made, again)
    problems += [f"a replay made another {name}" for name in unequal]
    return outcome("failed" if problems else "ok", worst, "; ".join(problems))


def case_inputs(case: Case, seed: int) -> Arrays:
    """Inputs, and poisoned outputs."""
    sizes, rng = case.sizes, np.random.default_rng(seed)
    count = max(1, sizes.rows - _IDLE_ROWS)
    start = sizes.tail - sizes.rows if sizes.tail > sizes.rows else 0
    tensors = kernel_inputs(case.kernel, sizes, rng, context=case.shape.context, count=count, start=start)
    poison(case.kernel, tensors)
    return tensors


def _launched(bench: Bench, arena: Arena, case: Case, tensors: Arrays) -> tuple[Arrays, Arrays, bool]:
    """(tensors after a launch, after a replay on the same inputs, whether the guards are intact)"""
    device = bench.device
    arena.reset()
    buffers = arena.inputs(tensors)
    program = device.program([Launch(case.kernel, case.sizes, buffers)])
    results: list[Arrays] = []
    for _ in range(2):
        for name, values in tensors.items():
            device.upload(buffers[name], values)
        program()
        results.append({name: device.download(buffer) for name, buffer in buffers.items()})
    return results[0], results[1], arena.intact()


def compared(case: Case, tensors: Arrays, made: Arrays) -> dict[str, float]:
    """The largest difference of each output from the reference's, as a share of its limit."""
    kernel, limits = case.kernel, LIMITS[case.kernel.name]
    count = int(tensors["control"][COUNT]) if "control" in tensors else case.sizes.rows
    worst = dict.fromkeys(limits, 0.0)
    for sizes, given, found in _samples(case, tensors, made, count):
        expected = {name: values.copy() for name, values in given.items()}
        kernel.reference(sizes, expected)
        if kernel is TREE_ATTN_PARTIAL:
            found, expected = (_joined(sizes, parts) for parts in (found, expected))
        rows = int(given["control"][COUNT]) if "control" in given else sizes.rows
        for name, limit in limits.items():
            excess = _excess(limit, found[name], expected[name], rows, sizes.rows)
            worst[name] = max(worst[name], excess)
    return worst


def _excess(limit: Limit, made: Array, expected: Array, count: int, rows: int) -> float:
    if not limit.rows:
        return limit.excess(made, expected)
    same = made[rows:].tobytes() == expected[rows:].tobytes()
    return max(limit.excess(made[:count], expected[:count]), 0.0 if same else np.inf)


def _joined(sizes: Sizes, parts: Arrays) -> Arrays:
    """What tree_attn_reduce's reference makes of the parts."""
    joined = empty_tensors(TREE_ATTN_REDUCE, sizes)
    for name in ("part_o", "part_ml"):
        joined[name][...] = parts[name]
    with np.errstate(all="ignore"):  # rows that mean nothing hold anything
        TREE_ATTN_REDUCE.reference(sizes, joined)
    return joined


def _samples(case: Case, tensors: Arrays, made: Arrays, count: int) -> Iterator[tuple[Sizes, Arrays, Arrays]]:
    """(sizes, inputs, results) that the reference is to be asked for: all of them, or some heads and rows."""
    sizes = case.sizes
    if case.kernel is GDN_PREFILL:
        group = sizes.value_heads // sizes.key_heads
        for key_head in {0, sizes.key_heads - 1}:
            values, keys = slice(key_head * group, (key_head + 1) * group), slice(key_head, key_head + 1)
            cuts = {"q": keys, "k": keys, **dict.fromkeys(("v", "log_decay", "beta", "y"), values)}
            few = replace(sizes, key_heads=1, value_heads=group)
            given, found = (
                {
                    name: array[values] if name == "state" else array[:, cuts[name]] if name in cuts else array
                    for name, array in arrays.items()
                }
                for arrays in (tensors, made)
            )
            yield few, given, found
    elif case.kernel is ATTN_PREFILL:
        size = min(_SAMPLED_ROWS, count)
        places = [(0, 0), (sizes.kv_heads - 1, (count - size) // 2)]
        places += [(kv_head, count - size) for kv_head in range(sizes.kv_heads)]
        for kv_head, first in dict.fromkeys(places):
            yield _window(sizes, tensors, made, kv_head, first, size)
    else:
        yield sizes, tensors, made


def _window(
    sizes: Sizes, tensors: Arrays, made: Arrays, kv_head: int, first: int, size: int
) -> tuple[Sizes, Arrays, Arrays]:
    """Rows first … first + size - 1 of a chunk and one KV head: the rows of a chunk behind a longer context."""
    heads, rows = slice(kv_head * sizes.group, (kv_head + 1) * sizes.group), slice(first, first + size)
    given = {**tensors, "control": tensors["control"].copy(), "q": tensors["q"][rows, heads]}
    given["control"][CONTEXT] += first
    given["control"][COUNT] = size
    for name in ("k_pages", "v_pages"):
        given[name] = tensors[name][:, :, kv_head : kv_head + 1]

    def cut(arrays: Arrays) -> Array:
        by_head = arrays["context"].reshape(sizes.rows, sizes.heads, sizes.head_dim)[rows, heads]
        return by_head.reshape(size, -1)

    given["context"] = cut(tensors)
    few = replace(sizes, rows=size, tail=size, heads=sizes.group, kv_heads=1)
    return few, given, {"context": cut(made)}


def _unequal(case: Case, tensors: Arrays, made: Arrays, again: Arrays) -> list[str]:
    """Outputs whose meaningful bytes differ between two runs."""
    if case.kernel is TREE_ATTN_PARTIAL:
        made, again = (_joined(case.sizes, parts) for parts in (made, again))
    limits = LIMITS[case.kernel.name]
    count = int(tensors["control"][COUNT]) if "control" in tensors else case.sizes.rows
    ends = {name: count if limit.rows else None for name, limit in limits.items()}
    return [name for name, end in ends.items() if made[name][:end].tobytes() != again[name][:end].tobytes()]
