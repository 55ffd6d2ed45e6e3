"""What is timed: the kernels that move the bytes of a step, at the sizes of a model, over more bytes than L2 holds.

Of capsules only the accepted nodes count as read. What must stay true: a replay goes through so many sets of buffers
that none is in L2 when it comes back to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from edgellm.engine.device.base import Launch
from edgellm.engine.device.cuda import CudaDevice
from edgellm.jetson.gpu_device import Arena
from edgellm.jetson.gpu_paged import attention_prefill, tree_attention
from edgellm.jetson.gpu_scale import SPLITS, TARGET, Scale, Workload, nbytes, splits_for, splits_of
from edgellm.jetson.gpu_timing import BEYOND_L2
from edgellm.kernels.attention import KV_COMMIT
from edgellm.kernels.gdn import GDN_PREFILL, GDN_TREE_VERIFY
from edgellm.kernels.inputs import Arrays
from edgellm.kernels.kernel_inputs import kernel_inputs
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, numpy_dtype
from edgellm.kernels.topk import DRAFT_TOPK, SAMPLE_TOPK

_FEW_PAGES: Final = 64  # of a layer, where all layers' pages are needed


def workloads(scale: Scale, l2_bytes: int, multiprocessors: int, *, all_splits: bool = False) -> list[Workload]:
    """Everything that is timed; `all_splits`: with every number of splits, not only the GPU's."""
    beyond = BEYOND_L2 * l2_bytes
    chosen = splits_for(multiprocessors, scale.spec.attention.kv_heads)
    found = [_verify(scale, rows, beyond) for rows in scale.rows]
    for rows in scale.rows:
        for context in scale.contexts:
            middle = context == sorted(scale.contexts)[len(scale.contexts) // 2] and rows == max(scale.rows)
            for splits in dict.fromkeys(splits_of(splits, rows) for splits in SPLITS):
                is_chosen = splits == splits_of(chosen, rows)
                if is_chosen or all_splits or middle:
                    found.append(tree_attention(scale, rows, context, splits, is_chosen, beyond))
    found.append(_delta_prefill(scale, beyond))
    found += [attention_prefill(scale, context, beyond) for context in scale.behind]
    found += [_commit(scale), _topk(scale, SAMPLE_TOPK, scale.spec.vocab, beyond)]
    found.append(_topk(scale, DRAFT_TOPK, min(32768, scale.spec.vocab), beyond))
    return found


def _copies(kernel: Kernel, sizes: Sizes, own: Sequence[str], least: int, beyond: int) -> int:
    """Sets of the buffers `own` that one replay goes through."""
    each = sum(math.prod(p.shape(sizes)) * numpy_dtype(p.dtype, sizes).itemsize for p in kernel.params if p.name in own)
    return max(least, -(-beyond // each))


def _turns(
    kernel: Kernel, sizes: Sizes, own: Sequence[str], count: int, inputs: Callable[[], Arrays]
) -> Callable[[CudaDevice, Arena], list[Launch]]:
    """Launches of `kernel` in turn over `count` sets of the buffers `own`; the others are shared."""

    def build(device: CudaDevice, arena: Arena) -> list[Launch]:
        tensors = inputs()
        shared = arena.inputs({name: values for name, values in tensors.items() if name not in own})
        sets = [arena.inputs({name: tensors[name] for name in own}) for _ in range(count)]
        return [Launch(kernel, sizes, {**shared, **one}) for one in sets]

    return build


def _single(
    name: str, detail: str, kernel: Kernel, sizes: Sizes, *, own: Sequence[str], sets: int, moved: int, formula: str,
    inputs: Callable[[], Arrays], operations: int = 0, target: float | None = None,
) -> Workload:  # fmt: skip
    arena = nbytes(kernel, sizes) + sets * (nbytes(kernel, sizes, own) + len(own) * 1024) + (1 << 20)
    build = _turns(kernel, sizes, own, sets, inputs)
    return Workload(
        name, detail, ((kernel, sizes),), sets, moved * sets, operations * sets, formula, target, arena, build
    )


def _step_inputs(kernel: Kernel, sizes: Sizes, context: int, count: int) -> Callable[[], Arrays]:
    return lambda: kernel_inputs(kernel, sizes, np.random.default_rng(0), context=context, count=count)


def _verify(scale: Scale, rows: int, beyond: int) -> Workload:
    kernel, sizes = GDN_TREE_VERIFY, scale.sizes(rows)
    capsule = ("cap_k", "cap_u", "cap_g")
    own = ("state", *capsule, "new_cap_k", "new_cap_u", "new_cap_g")
    inputs = _step_inputs(kernel, sizes, 0, rows)
    accepted = bin(int(inputs()["accepted"][0]) & 0xFFFFFFFF).count("1")
    written = nbytes(kernel, sizes, [f"new_{name}" for name in capsule]) * rows // sizes.capsule
    read = nbytes(kernel, sizes, capsule) * accepted // sizes.capsule
    others = [param.name for param in kernel.params if "cap_" not in param.name and param.name != "ancestors"]
    return _single(
        "gdn_tree_verify",
        f"{rows} rows, {accepted} accepted",
        kernel,
        sizes,
        own=own,
        sets=_copies(kernel, sizes, own, len(scale.spec.linear_layers), beyond),
        moved=nbytes(kernel, sizes, others) + written + read,
        formula="2 state + accepted capsule nodes + new capsule nodes + q k v g beta + y",
        inputs=inputs,
        target=TARGET,
    )


def _delta_prefill(scale: Scale, beyond: int) -> Workload:
    kernel, sizes = GDN_PREFILL, scale.sizes(scale.chunk)
    own = ("q", "k", "v", "state", "y")
    d, tail = scale.spec.linear, scale.spec.linear.conv_kernel - 1
    history = nbytes(kernel, sizes, ["qkv"]) * tail // sizes.rows
    names = [param.name for param in kernel.params if param.name != "qkv"]
    return _single(
        "gdn_prefill",
        f"{scale.chunk} rows",
        kernel,
        sizes,
        own=own,
        sets=_copies(kernel, sizes, own, 2, beyond),
        moved=nbytes(kernel, sizes, names) + history,
        formula="2 states + q k v g beta + y; operations: 6 key_dim value_dim per head and token",
        inputs=_step_inputs(kernel, sizes, 0, scale.chunk),
        operations=6 * scale.chunk * d.value_heads * d.key_dim * d.value_dim,
    )


def _commit(scale: Scale) -> Workload:
    nodes, layers = max(scale.rows), len(scale.spec.full_layers)
    sizes = replace(scale.sizes(nodes), layers=layers, pages=_FEW_PAGES, max_pages=_FEW_PAGES)
    inputs = _step_inputs(KV_COMMIT, sizes, 60, nodes)
    rows = bin(int(inputs()["accepted"][0]) & 0xFFFFFFFF).count("1")
    return _single(
        "kv_commit",
        f"{rows} rows of {layers} layers",
        KV_COMMIT,
        sizes,
        own=("tail_k", "tail_v"),
        sets=4,
        moved=4 * rows * layers * scale.spec.attention.kv_heads * scale.spec.attention.head_dim,
        formula="accepted rows of keys and values, read and written",
        inputs=inputs,
    )


def _topk(scale: Scale, kernel: Kernel, vocab: int, beyond: int) -> Workload:
    rows = max(scale.rows)
    sizes = replace(scale.sizes(rows), vocab=vocab)
    return _single(
        kernel.name,
        f"{rows} rows of {vocab}",
        kernel,
        sizes,
        own=("logits",),
        sets=_copies(kernel, sizes, ("logits",), 2, beyond),
        moved=nbytes(kernel, sizes),
        formula="logits + candidates",
        inputs=_step_inputs(kernel, sizes, 0, rows),
    )
