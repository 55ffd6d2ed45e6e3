"""Which matrices are quantized, and which of them share a global scale.

The embedding, convolutions, norms and the decay and rate projections stay as they are: they cost little and matter
much. What must stay true: parts that runtimes fuse are quantized alike and with one global scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edgellm.checkpoint.module_patterns import FUSED, fused_name, matches
from edgellm.checkpoint.nvfp4 import BLOCK
from edgellm.errors import ConfigError

_KEPT: Final = ("in_proj_a", "in_proj_b")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Attributes:
    lm_head: the output head too, where it is a matrix of its own.
    mtp: the MTP layer's matrices too.
    only: patterns of the modules to quantize; none: all that the other fields allow.
    spare: patterns of modules to leave as they are.
    weight_only: activations stay as they are (W4A16) although texts to calibrate on are given.
    feedback: with such texts, each column of a matrix makes up for the errors of those before it.
    """

    lm_head: bool = False
    mtp: bool = False
    only: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    weight_only: bool = False
    feedback: bool = False


RECIPES: Final[Mapping[str, Recipe]] = {
    "nvfp4": Recipe(),
    "nvfp4-head": Recipe(lm_head=True),
    "nvfp4-all": Recipe(lm_head=True, mtp=True),
}


def named_recipe(name: str) -> Recipe:
    """A recipe of `RECIPES`.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in RECIPES:
        raise ConfigError(f"recipe: must be one of {', '.join(RECIPES)} or modelopt, got {name!r}")
    return RECIPES[name]


def chosen_modules(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, ...]]:
    """Modules to quantize → all the modules that share its global scale, itself among them.

    Args:
        shapes: canonical tensor name → shape, of the whole model.

    Raises:
        ConfigError: a pattern means no module, a fused group is chosen in part, or nothing is left.
    """
    linear = [module for module, columns in _meant(recipe, shapes).items() if columns % BLOCK == 0]
    for pattern in (*recipe.only, *recipe.spare):
        if not any(matches(pattern, module) for module in linear):
            raise ConfigError(f"{pattern!r} means none of the modules that can be quantized")
    chosen = [
        module
        for module in linear
        if (not recipe.only or any(matches(pattern, module) for pattern in recipe.only))
        and not any(matches(pattern, module) for pattern in recipe.spare)
    ]
    if not chosen:
        raise ConfigError("no module is left to quantize")
    kept = set(chosen)
    groups: dict[str, tuple[str, ...]] = {}
    for module in chosen:
        stem, _, leaf = fused_name(module).rpartition(".")
        group = tuple(f"{stem}.{part}" for part in FUSED[leaf]) if leaf in FUSED else (module,)
        if lacking := [part for part in group if part not in kept]:
            raise ConfigError(f"{module} is chosen but {lacking[0]} is not: parts that are fused must be alike")
        groups[module] = group
    return groups


def unfit_modules(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Modules that the recipe means but whose columns are no multiple of 16."""
    return [module for module, columns in _meant(recipe, shapes).items() if columns % BLOCK]


def _meant(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Modules that the recipe's switches mean → columns."""
    matrices = {name.removesuffix(".weight"): shape[1] for name, shape in shapes.items() if len(shape) == 2}
    return {module: columns for module, columns in matrices.items() if _may(module, recipe)}


def _may(module: str, recipe: Recipe) -> bool:
    if module == "embed_tokens" or module.endswith(_KEPT):
        return False
    if module == "lm_head":
        return recipe.lm_head
    return recipe.mtp if module.startswith("mtp.") else True
