"""`build_bundle`: a checkpoint and a recipe become an engine bundle."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import numpy as np

from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.bundle import list_files, staged
from edgellm.engine.manifest import MANIFEST_FILE, Manifest
from edgellm.engine.recipe import Recipe
from edgellm.engine.recommended import recommended_sampling
from edgellm.errors import ConfigError
from edgellm.graph.encodings import BlockFormat, WeightFormat
from edgellm.graph.export import build_ort_graphs
from edgellm.progress import Progress


def default_recipe(source: Checkpoint) -> str:
    """Name of the shipped recipe that keeps the checkpoint's values: matrices in NVFP4 stay so."""
    return "cpu-nvfp4" if any(source.kind(name) == "nvfp4" for name in source.matrices) else "cpu-f32"


def build_bundle(
    checkpoint: str | Path | Checkpoint,
    out: str | Path,
    recipe: Recipe,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Build the bundle `out`.

    Args:
        checkpoint: its folder, or the opened one.
        force: replace a bundle that is already there.
        progress: called with (phase, done, total) for the phases "checkpoint" (bytes), "weights" (matrices) and
            "hash" (bytes).

    Returns:
        `out` as a path. It appears whole or not at all.

    Raises:
        CheckpointError: the checkpoint is broken.
        ConfigError: `out` is in use, or the recipe asks for more context than the checkpoint has.
    """
    source = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.open(checkpoint)
    sampling = recommended_sampling(source.generation_config)
    context = recipe.context or source.spec.max_positions
    if context > source.spec.max_positions:
        raise ConfigError(f"context {context} exceeds the checkpoint's {source.spec.max_positions} positions")
    if recipe.activations == "nvfp4" and not _has_input_scales(source):
        raise ConfigError("the recipe rounds activations to NVFP4 but the checkpoint has no input_scale: it is W4A16")
    target = Path(out)
    with staged(target, force=force) as folder:
        digest = source.content_hash(lambda done, total: _report(progress, "checkpoint", done, total))
        form = recipe.weight_format()
        kv_scales = _kv_scales(source) if recipe.kv == "fp8" else None
        build_ort_graphs(source, folder, form, positions=context, kv_scales=kv_scales, progress=progress)
        for path in source.tokenizer_files:
            shutil.copyfile(path, folder / path.name)
        manifest = Manifest(
            target=recipe.target,
            edgellm=importlib.metadata.version("edgellm"),
            onnxruntime=importlib.metadata.version("onnxruntime"),
            source=source.path.resolve().name,
            source_sha256=digest,
            spec=source.spec,
            precision=_precision(form, recipe),
            block_tokens=recipe.block_tokens,
            tree_nodes=recipe.tree_nodes,
            prefill_chunk=recipe.prefill_chunk,
            context=context,
            eos_token_ids=source.eos_token_ids,
            speculation=recipe.speculation,
            sampling=sampling,
            files=list_files(folder, progress),
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return target


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


def _precision(form: WeightFormat, recipe: Recipe) -> dict[str, str]:
    def stored(part: BlockFormat | None) -> str:
        return f"int{part.bits} block {part.block}" if part else "f32"

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
        "KV rows": "values of E4M3, as f32" if recipe.kv == "fp8" else "f32",
    }


def _report(progress: Progress | None, phase: str, done: int, total: int) -> None:
    if progress is not None:
        progress(phase, done, total)
