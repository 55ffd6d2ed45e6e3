"""What a weight and a cached value cost: the parts of a model, how many weights each has, and bytes per weight.

Owns the split of a model into parts that may be stored differently. What must stay true: the parts of `weight_counts`
add up to the model's tensors, `ModelSpec.expected_tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from edgellm.checkpoint.spec import ModelSpec

if TYPE_CHECKING:
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.engine.recipe import Recipe
    from edgellm.graph.encodings import BlockFormat

CPU: Final = "ort-cpu"  # the recipe target whose weights and caches have forms of their own
Part = Literal["gdn", "attention", "mlp", "head", "embeddings", "mtp", "small"]
PARTS: Final[tuple[Part, ...]] = ("gdn", "attention", "mlp", "head", "embeddings", "mtp", "small")

# Bytes per weight. NVFP4: 4 bits, and one E4M3 scale for 16 of them; the scale of a whole matrix does not count.
BYTES: Final[Mapping[str, float]] = MappingProxyType(
    {"nvfp4": 0.5 + 1 / 16, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "bf16": 2.0, "f16": 2.0, "f32": 4.0}
)


def part_of(tensor: str, shape: tuple[int, ...]) -> Part:
    """Which part the tensor with this canonical name belongs to; norms, convolutions and decays are "small"."""
    if len(shape) != 2:
        return "small"
    if tensor.startswith("mtp."):
        return "mtp"
    if ".linear_attn." in tensor:
        return "gdn"
    if ".self_attn." in tensor:
        return "attention"
    if ".mlp." in tensor:
        return "mlp"
    return "head" if tensor.startswith("lm_head") else "embeddings"


def weight_counts(spec: ModelSpec) -> dict[Part, int]:
    """Weights of each part. A tied head has none of its own: it is the embeddings."""
    counts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for name, shape in spec.expected_tensors().items():
        counts[part_of(name, shape)] += math.prod(shape)
    return counts


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per weight of each part, and per value of the KV cache. Recurrent state is float32 always."""

    label: str
    gdn: float
    attention: float
    mlp: float
    head: float
    mtp: float
    embeddings: float = BYTES["bf16"]
    small: float = BYTES["bf16"]
    kv: float = BYTES["fp8"]

    def weight_bytes(self, spec: ModelSpec) -> dict[Part, int]:
        """Bytes that each part takes in memory."""
        return {part: round(count * self.per_weight(part)) for part, count in weight_counts(spec).items()}

    def per_weight(self, part: Part) -> float:
        """Bytes per weight of `part`."""
        size: float = getattr(self, part)
        return size

    def head_bytes(self, spec: ModelSpec, rows: int | None = None) -> float:
        """Bytes read to compute the logits of the first `rows` tokens of the vocabulary, None: of all."""
        per_weight = self.embeddings if spec.tied_embeddings else self.head
        return (spec.vocab if rows is None else rows) * spec.hidden * per_weight


def _device(label: str, *, mlp: str = "nvfp4", mixers: str = "nvfp4", head: str = "nvfp4") -> Precision:
    return Precision(
        label,
        gdn=BYTES[mixers],
        attention=BYTES[mixers],
        mlp=BYTES[mlp],
        head=BYTES[head],
        mtp=BYTES["nvfp4"],
    )


# What is published of this family, and what `edgellm quantize` writes; FP8 KV and an NVFP4 draft layer in all.
VARIANTS: Final[Mapping[str, Precision]] = MappingProxyType(
    {
        "nvfp4": _device("A: all linear layers and the head NVFP4"),
        "nvfp4-head-fp8": _device("B: all linear layers NVFP4, head FP8", head="fp8"),
        "nvfp4-head-bf16": _device("C: all linear layers NVFP4, head BF16", head="bf16"),
        "modelopt-mixed": _device("D: MLP and head NVFP4, attention and GDN FP8", mixers="fp8"),
        "nvfp4-mlp": _device("E: MLP NVFP4, attention, GDN and head BF16", mixers="bf16", head="bf16"),
    }
)


def recipe_precision(recipe: Recipe, label: str) -> Precision:
    """What a bundle built by `recipe` holds, from a checkpoint that has its linear layers in the recipe's precision.

    The CPU executor stores NVFP4 in 8-bit codes with a float32 scale for 16 (`encodings.NVFP4_EXACT`), everything that
    has no block form in float32, and its KV cache in float32 whatever values the rows have. A device keeps matrices as
    they are stored, here NVFP4, and values of its KV cache in one byte where the recipe says "fp8", else in two.
    """
    if recipe.target != CPU:
        kv = BYTES["fp8" if recipe.kv == "fp8" else "bf16"]
        return replace(VARIANTS["nvfp4"], label=label, kv=kv)
    form = recipe.weight_format()
    matrix, rows = _block_bytes(form.matrix("nvfp4")), _block_bytes(form.sensitive)
    return Precision(label, matrix, matrix, matrix, matrix, matrix, embeddings=rows, small=4.0, kv=4.0)


def repeated_parts(recipe: Recipe) -> dict[Part, int]:
    """Parts that a bundle built by `recipe` holds more than once → how often more.

    The CPU executor maps one weight file for all graphs, and in the split form a matrix is in one engine. In the whole
    form every graph is an engine of its own with its own weights: verify and prefill have the whole decoder, the MTP
    engine the embeddings and the head again.
    """
    if recipe.tensorrt is None or recipe.tensorrt.form == "split":
        return {}
    return {"gdn": 1, "attention": 1, "mlp": 1, "head": 2, "embeddings": 2, "small": 1}


def _block_bytes(form: BlockFormat | None) -> float:
    return BYTES["f32"] if form is None else form.bits / 8 + 4 / form.block


def checkpoint_precision(checkpoint: Checkpoint) -> Precision:
    """The forms in which `checkpoint` has its matrices, averaged over each part; FP8 KV, as a device keeps it."""
    shapes, stored = checkpoint.spec.expected_tensors(), dict.fromkeys(PARTS, 0.0)
    for name in checkpoint.matrices:
        stored[part_of(name, shapes[name])] += math.prod(shapes[name]) * BYTES[checkpoint.kind(name)]
    counts = weight_counts(checkpoint.spec)
    sizes = {part: stored[part] / counts[part] if counts[part] else 0.0 for part in PARTS if part != "small"}
    return Precision("as the checkpoint stores it", **sizes)
