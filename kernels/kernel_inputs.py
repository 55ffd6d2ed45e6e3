"""Inputs for any kernel of the catalog: fillers of `inputs`, put together as a step would have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from edgellm.kernels.inputs import (
    Arrays,
    accept,
    ancestors,
    attention_tensors,
    draw,
    family,
    fill_bytes,
    fill_capsule,
    fill_operands,
    fill_raw,
    fill_tree,
    prep_tensors,
    random_tree,
)
from edgellm.kernels.reference.attention import NOTHING_SEEN
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, POOL, TAIL_START, Kernel, empty_tensors

_FEW_TOKENS: Final = 5  # of which trees are made, so that children match what is said
_NOBODY: Final = -12345  # parent of a row that means nothing
_LIKENESS: Final = 0.5  # of keys
_SHARPNESS: Final = 2.0  # of queries: weights that differ


def kernel_inputs(
    kernel: Kernel, sizes: Sizes, rng: np.random.Generator, *, context: int, count: int, start: int = 0
) -> Arrays:
    """Tensors for any kernel of the catalog; its outputs are zeros.

    Args:
        context: committed tokens; context + count + 1 of them have room in the pages.
        count: rows that mean something.
        start: draft rows that already stand in the tail, where the kernel has a tail.
    """
    tensors = empty_tensors(kernel, sizes)
    if "control" in tensors:
        tensors["control"][[CONTEXT, COUNT, TAIL_START]] = context, count, start
    _MAKERS[kernel.name](kernel, sizes, tensors, rng)
    return tensors


# Makers fill tensors whose control block is there already.
_Maker = Callable[[Kernel, Sizes, Arrays, np.random.Generator], None]


def _tree_build(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    count, start = int(t["control"][COUNT]), int(t["control"][TAIL_START])
    parents = random_tree(rng, start + count)
    t["parents"][:count] = parents[start:]
    t["parents"][count:] = _NOBODY
    if start:
        t["ancestors"][:start] = ancestors(parents[:start], sizes.words)
        t["depths"][:start] = [bin(mask).count("1") - 1 for mask in family(parents)[:start]]


def _tree_accept(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    count = int(t["control"][COUNT])
    for name in ("best", "tokens"):
        t[name][...] = rng.integers(0, _FEW_TOKENS, t[name].shape)
    t["parents"][...] = _NOBODY
    t["parents"][:count] = random_tree(rng, count)


def _topk(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    t["logits"][...] = rng.normal(0, 3, t["logits"].shape)
    t["logits"][:, rng.integers(0, sizes.vocab, 4)] = 10  # equal ones


def _gdn_prep(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    count = int(t["control"][COUNT])
    fill_raw(t, rng, count)
    t["parents"][:count] = random_tree(rng, count)
    t["cap_c"][...] = rng.standard_normal(t["cap_c"].shape)
    accept(t, random_tree(rng, sizes.capsule), sizes.capsule - 1)


def _gdn_prep_chain(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    fill_raw(t, rng, int(t["control"][COUNT]))


def _gdn_tree_verify(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    fill_tree(t, rng, random_tree(rng, int(t["control"][COUNT])))
    fill_capsule(t, rng)
    accept(t, random_tree(rng, sizes.capsule), sizes.capsule - 1)
    t["state"][...] = 0.3 * rng.standard_normal(t["state"].shape)


def _gdn_commit(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    fill_capsule(t, rng)
    for name in ("state", "conv_state", "cap_c"):
        t[name][...] = rng.standard_normal(t[name].shape)
    nodes = family(random_tree(rng, sizes.capsule))
    t["accepted"][:] = np.uint32(nodes[-1]).view(np.int32), sizes.capsule - 1


def _gdn_prefill(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    count = int(t["control"][COUNT])
    fill_operands(t, rng, count)
    for name in ("state", "conv_state", "qkv"):
        t[name][...] = 0.3 * rng.standard_normal(t[name].shape)
    t["qkv"][count:] = np.nan


def _attn_prep(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    t.update(prep_tensors(kernel, sizes, rng, int(t["control"][COUNT]), int(t["control"][TAIL_START])))


def _tree_attn_partial(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    context, count, start = (int(t["control"][at]) for at in (CONTEXT, COUNT, TAIL_START))
    t.update(
        attention_tensors(
            kernel, sizes, rng, context=context, count=count, start=start, likeness=_LIKENESS, sharpness=_SHARPNESS
        )
    )
    t["ancestors"][: start + count] = ancestors(random_tree(rng, start + count), sizes.words)


def _tree_attn_reduce(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    t["part_o"][...] = draw(rng, t["part_o"].shape)
    t["part_ml"][..., 0] = 100 * draw(rng, t["part_ml"].shape[:-1])
    t["part_ml"][..., 1] = 1 + rng.random(t["part_ml"].shape[:-1])
    if sizes.splits > 1:  # one that saw nothing
        t["part_ml"][1] = NOTHING_SEEN, 0
        t["part_o"][1] = np.nan


def _attn_prefill(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    context, count = (int(t["control"][at]) for at in (CONTEXT, COUNT))
    t.update(
        attention_tensors(
            kernel,
            sizes,
            rng,
            context=context,
            count=count,
            stored=context + count,
            likeness=_LIKENESS,
            sharpness=_SHARPNESS,
        )
    )


def _kv_copies(kernel: Kernel, sizes: Sizes, t: Arrays, rng: np.random.Generator) -> None:
    fill_bytes(t, sizes, rng)
    if "accepted" in t:
        masks = family(random_tree(rng, min(sizes.tail, 32)))
        t["accepted"][:] = np.uint32(masks[-1]).view(np.int32), len(masks) - 1
    if "copy" in t:
        t["copy"][:] = *rng.permutation(sizes.pages)[:2], sizes.pages
    if "control" in t:
        t["control"][POOL] = sizes.pages


_MAKERS: Final[Mapping[str, _Maker]] = {
    "tree_build": _tree_build,
    "tree_accept": _tree_accept,
    "draft_topk": _topk,
    "sample_topk": _topk,
    "gdn_prep": _gdn_prep,
    "gdn_prep_chain": _gdn_prep_chain,
    "gdn_tree_verify": _gdn_tree_verify,
    "gdn_commit": _gdn_commit,
    "gdn_prefill": _gdn_prefill,
    "attn_prep": _attn_prep,
    "tree_attn_partial": _tree_attn_partial,
    "tree_attn_reduce": _tree_attn_reduce,
    "attn_prefill": _attn_prefill,
    "kv_write": _kv_copies,
    "kv_commit": _kv_copies,
    "kv_copy_page": _kv_copies,
}
