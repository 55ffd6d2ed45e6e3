"""`build_bundle`: a checkpoint and a recipe become an engine bundle."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Final, get_args

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.bundle import list_files, staged
from edgellm.engine.manifest import MANIFEST_FILE, Manifest
from edgellm.engine.ort_graphs import OrtGraphs, plan_ort_graphs
from edgellm.engine.recipe import Recipe, Target, load_recipe
from edgellm.engine.recommended import recommended_sampling
from edgellm.engine.trt.engines import EnginePlan, plan_engines
from edgellm.errors import ConfigError
from edgellm.progress import Progress

# What is built for a target when no recipe is named.
DEVICE_RECIPES: Final = {"tensorrt": "qwen3.6-27b-nvfp4-thor", "tensorrt-rtx": "nvfp4-rtx"}


def default_recipe(source: Checkpoint) -> str:
    """Name of the shipped recipe for the CPU that keeps the checkpoint's values: matrices in NVFP4 stay so."""
    return "cpu-nvfp4" if any(source.kind(name) == "nvfp4" for name in source.matrices) else "cpu-f32"


def choose_recipe(source: Checkpoint, name: str | None, target: str | None) -> tuple[str, Recipe]:
    """The recipe that a user means: by name, or the default of a target (ort-cpu where none is given).

    Raises:
        ConfigError: there is no such recipe or target, or the recipe is for another target.
    """
    if target is not None and target not in get_args(Target):
        raise ConfigError(f"target must be one of {', '.join(get_args(Target))}, got {target!r}")
    chosen = name or DEVICE_RECIPES.get(target or "ort-cpu") or default_recipe(source)
    recipe = load_recipe(chosen)
    if target is not None and recipe.target != target:
        raise ConfigError(f"recipe {chosen} is for target {recipe.target}, not {target}")
    return chosen, recipe


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
            "hash" (bytes), and for engines "engine <name>" (steps of TensorRT).

    Returns:
        `out` as a path. It appears whole or not at all.

    Raises:
        CheckpointError: the checkpoint is broken.
        ConfigError: `out` is in use, the recipe asks for more context than the checkpoint has, or this machine cannot
            build for its target (nothing has been read or written then).
        ExecutionError: TensorRT failed.
    """
    source = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.open(checkpoint)
    sampling = recommended_sampling(source.generation_config)
    context = recipe.context or source.spec.max_positions
    if context > source.spec.max_positions:
        raise ConfigError(
            f"the recipe's context {context} exceeds the checkpoint's {source.spec.max_positions} positions: give a "
            "recipe file with a smaller one"
        )
    target = Path(out)
    graphs: OrtGraphs | EnginePlan
    if recipe.target == "ort-cpu":
        graphs = plan_ort_graphs(source, recipe, context)
    else:
        graphs = plan_engines(source, recipe, context, target)
    with staged(target, force=force) as folder:
        digest = source.content_hash(lambda done, total: _report(progress, "checkpoint", done, total))
        device = graphs.write(folder, progress)
        for path in source.tokenizer_files:
            shutil.copyfile(path, folder / path.name)
        manifest = Manifest(
            target=recipe.target,
            edgellm=importlib.metadata.version("edgellm"),
            onnxruntime=importlib.metadata.version("onnxruntime"),
            source=source.path.resolve().name,
            source_sha256=digest,
            spec=source.spec,
            precision=graphs.precision(),
            block_tokens=recipe.block_tokens,
            tree_nodes=recipe.tree_nodes,
            prefill_chunk=recipe.prefill_chunk,
            context=context,
            eos_token_ids=source.eos_token_ids,
            speculation=recipe.speculation,
            sampling=sampling,
            files=list_files(folder, progress),
            device=device,
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return target


def _report(progress: Progress | None, phase: str, done: int, total: int) -> None:
    if progress is not None:
        progress(phase, done, total)
