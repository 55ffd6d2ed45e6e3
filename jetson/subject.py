"""From what a user names to what is planned: the shape of a model, its precision, and a recipe's sizes.

What must stay true: nothing is downloaded and no weight is read; a checkpoint folder is looked at by its headers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.reader import INDEX_FILE, SINGLE_FILE, Checkpoint
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.tokenizer_files import read_json
from edgellm.engine.recipe import Recipe, load_recipe
from edgellm.errors import ConfigError
from edgellm.jetson.precision import CPU, VARIANTS, Precision, checkpoint_precision, recipe_precision
from edgellm.models import shipped

DEFAULT_VARIANT = "nvfp4"


@dataclass(frozen=True, slots=True)
class Subject:
    """What to plan for. `recipe` gives the tree, chunk and block sizes."""

    spec: ModelSpec
    precision: Precision
    recipe: Recipe


def find_subject(model: str, recipe: str | None) -> Subject:
    """The subject that `model` (checkpoint folder, config.json or preset) and `recipe` (variant or recipe) name.

    Raises:
        ConfigError: there is no such model, or no such variant or recipe.
        CheckpointError: the config or a header is wrong; names the file and field.
    """
    checkpoint, spec = _model(model)
    if recipe is None and checkpoint is not None:
        return Subject(spec, checkpoint_precision(checkpoint), Recipe())
    name = recipe or DEFAULT_VARIANT
    if name in VARIANTS:
        return Subject(spec, VARIANTS[name], Recipe())
    try:
        chosen = load_recipe(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; nor is it one of {', '.join(VARIANTS)}") from error
    precision = recipe_precision(chosen, f"recipe {name}")
    if checkpoint is not None and chosen.target != CPU:  # a device keeps matrices as they are stored
        precision = replace(checkpoint_precision(checkpoint), label=precision.label, kv=precision.kv)
    return Subject(spec, precision, chosen)


def _model(name: str) -> tuple[Checkpoint | None, ModelSpec]:
    """The opened checkpoint, where there are weights, and the shape."""
    if name in PRESETS:
        return None, ModelSpec.from_config(PRESETS[name].config)
    path = shipped(name) or Path(name)
    if path.is_file():
        return None, ModelSpec.from_config(read_json(path))
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"model: {name!r} is no checkpoint folder, no config.json and not one of {', '.join(PRESETS)}"
        )
    if (path / SINGLE_FILE).is_file() or (path / INDEX_FILE).is_file():
        checkpoint = Checkpoint.open(path)
        return checkpoint, checkpoint.spec
    return None, ModelSpec.from_config(read_json(path / "config.json"))
