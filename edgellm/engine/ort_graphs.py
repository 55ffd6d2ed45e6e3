"""The graphs of a bundle for ONNX Runtime, from a checkpoint and a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.recipe import Recipe
from edgellm.errors import ConfigError
from edgellm.graph.encodings import BlockFormat
from edgellm.graph.export import build_ort_graphs
from edgellm.progress import Progress


@dataclass(frozen=True, slots=True)
class OrtGraphs:
    """A build that can start: made by `plan_ort_graphs`."""

    source: Checkpoint
    recipe: Recipe
    context: int

    def write(self, folder: Path, progress: Progress | None) -> None:
        """Write graphs and weights into `folder`."""
        form = self.recipe.weight_format()
        kv_scales = _kv_scales(self.source) if self.recipe.kv == "fp8" else None
        build_ort_graphs(self.source, folder, form, positions=self.context, kv_scales=kv_scales, progress=progress)

    def precision(self) -> dict[str, str]:
        """Module → stored form, for the manifest."""

        def stored(part: BlockFormat | None) -> str:
            return f"int{part.bits} block {part.block}" if part else "f32"

        form = self.recipe.weight_format()
        exact = form.precision == "nvfp4"
        matrices = form.matrix("nvfp4" if exact else "bf16")
        activations = "int8" if matrices and form.accuracy_level == 4 else "f32"
        if form.activations == "nvfp4":
            activations = "values of NVFP4, as f32"
        return {
            "matrices": f"NVFP4 exactly as {stored(matrices)}, others f32" if exact else stored(matrices),
            "embedding, decay and rate projections": stored(form.sensitive),
            "norms, convolution": "f32",
            "activations of matrix products": activations,
            "recurrent state": "f32",
            "KV rows": "values of E4M3, as f32" if self.recipe.kv == "fp8" else "f32",
        }


def plan_ort_graphs(source: Checkpoint, recipe: Recipe, context: int) -> OrtGraphs:
    """Check what the recipe asks of the checkpoint.

    Raises:
        ConfigError: it rounds activations to NVFP4 and the checkpoint has no scales for them.
    """
    if recipe.activations == "nvfp4" and not _has_input_scales(source):
        raise ConfigError("the recipe rounds activations to NVFP4 but the checkpoint has no input_scale: it is W4A16")
    return OrtGraphs(source, recipe, context)


def _has_input_scales(source: Checkpoint) -> bool:
    weights = map(source.weight, source.matrices)
    return any(isinstance(weight, Nvfp4Weight) and weight.input_scale is not None for weight in weights)


def _kv_scales(source: Checkpoint) -> dict[str, float]:
    """Scale of each cache: the checkpoint's, or 1."""
    caches = {f"layers.{layer}.self_attn": (f"k_{layer}", f"v_{layer}") for layer in source.spec.full_layers}
    if source.spec.mtp_layers:
        caches["mtp.layers.0.self_attn"] = ("mtp_k", "mtp_v")
    one = np.float32(1)
    scales: dict[str, float] = {}
    for layer, names in caches.items():
        for name, scale in zip(names, source.kv_scales.get(layer, (one, one)), strict=True):
            scales[name] = float(scale)
    return scales
