"""Recipes are read strictly: whatever is unknown or out of range is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.engine.recipe import Recipe, load_recipe
from edgellm.errors import ConfigError


@pytest.mark.parametrize("precision", ["f32", "int8", "int4", "nvfp4"])
def test_shipped_recipes(precision: str) -> None:
    recipe = load_recipe(f"cpu-{precision}")
    assert recipe.precision == precision
    assert recipe.block_tokens == 64
    assert recipe.speculation.enabled


def test_a_recipe_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('precision = "int8"\ncontext = 4096\n[speculation]\nsteps = 3\n')
    recipe = load_recipe(path)
    assert (recipe.precision, recipe.context, recipe.speculation.steps) == ("int8", 4096, 3)
    assert recipe.block_tokens == Recipe().block_tokens


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("presicion = 'f32'", "unknown key 'presicion'"),
        ("[speculation]\nstep = 3", "unknown key 'step'"),
        ("precision = 'int3'", "precision must be one of"),
        ("target = 'tensorrt'", "target must be one of"),
        ("block_size = 33", "block_size must be one of"),
        ("block_size = true", "block_size must be one of"),
        ("block_tokens = 0", "block_tokens must be an integer from 1"),
        ("tree_nodes = 17", "tree_nodes must be an integer from 1 to 16"),
        ("prefill_chunk = 'a'", "prefill_chunk must be an integer"),
        ("context = 0", "context must be an integer"),
        ("speculation = 3", "speculation must be a table"),
        ("[speculation]\nsteps = -1", "speculation.steps must be at least 0"),
        ("precision =", "not valid TOML"),
        ("activations = 'int8'", "activations must be one of f32, nvfp4"),
        ("activations = 'nvfp4'", "activations in nvfp4 need precision nvfp4 or f32, and accuracy_level 0"),
        ("activations = 'nvfp4'\naccuracy_level = 0\nprecision = 'int4'", "activations in nvfp4 need"),
    ],
)
def test_wrong_recipes_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named) as caught:
        load_recipe(path)
    assert "mine.toml" in str(caught.value)


def test_no_such_recipe() -> None:
    with pytest.raises(ConfigError, match="cpu-int8"):
        load_recipe("gpu")
