"""Every kernel by name, and what of them a model needs on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.kernels import attention, gdn, topk, tree
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel

KERNELS: Final[Mapping[str, Kernel]] = {
    kernel.name: kernel for module in (tree, topk, gdn, attention) for kernel in module.KERNELS
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A kernel as one part of the device path launches it."""

    part: str  # what launches it
    kernel: Kernel
    sizes: Sizes


_TREE: Final = ("tree_build", "gdn_prep", "gdn_tree_verify", "attn_prep", "tree_attn_partial", "tree_attn_reduce")
_PREFILL: Final = ("gdn_prep_chain", "gdn_prefill", "attn_prep", "kv_write", "attn_prefill")
_DRAFT: Final = ("tree_build", "attn_prep", "tree_attn_partial", "tree_attn_reduce", "draft_topk")
_NODES: Final = 16
_GROWN: Final = 160  # draft rows of a tree that the MTP layer grows, behind tokens that wait for it
_CHUNK: Final = 1024
_SAMPLED: Final = 64
_SHORT_VOCAB: Final = 32768  # of a draft head with the most frequent tokens


def device_profiles(spec: ModelSpec, context: int = 131072) -> Iterator[Profile]:
    """What a model of bfloat16 activations with an MTP layer launches on a device; trees of up to 16 nodes."""
    whole = Sizes.of(spec, io="bf16", rows=_NODES, max_pages=-(-context // 64), splits=10)
    full = spec.layers.count("full_attention")
    for rows in (1, _NODES):
        step = replace(whole, rows=rows, tail=rows, splits=whole.splits if rows > 1 else 3 * whole.splits)
        yield from _profiles(f"verify {rows}", step, *_TREE, "tree_accept", "sample_topk")
        yield from _profiles(f"sample {rows}", replace(step, top_k=_SAMPLED), "sample_topk")
        grown = replace(step, tail=_GROWN)
        yield from _profiles(f"draft {rows}", grown, *_DRAFT)
        yield from _profiles(f"draft {rows}, short head", replace(grown, vocab=_SHORT_VOCAB), "draft_topk")
    yield from _profiles(f"prefill {_CHUNK}", replace(whole, rows=_CHUNK, tail=_CHUNK), *_PREFILL)
    yield from _profiles("commit", replace(whole, layers=full), "kv_commit")
    yield from _profiles("commit, draft layer", replace(whole, tail=_GROWN), "kv_commit")
    yield from _profiles("restore", replace(whole, layers=full + 1), "kv_copy_page")
    yield from _profiles("commit", replace(whole, layers=len(spec.layers) - full), "gdn_commit")


def _profiles(part: str, sizes: Sizes, *names: str) -> Iterator[Profile]:
    return (Profile(part, KERNELS[name], sizes) for name in names)


DEVICE_PROFILES: Final = tuple(device_profiles(ModelSpec.from_config(PRESETS["qwen36-27b"].config)))
