"""Recipes are read strictly: whatever is unknown or out of range is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.engine.recipe import Recipe, TensorRtRecipe, load_recipe
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
        ("target = 'metal'", "target must be one of ort-cpu, tensorrt, tensorrt-rtx"),
        ("target = 3", "target must be one of"),
        ("kv = 'bf16'", "kv must be one of f32, fp8"),
        ("[tensorrt]\ncompute_capability = 'SM110'", r"\[tensorrt\] is not used by target ort-cpu"),
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


DEVICE = """target = "tensorrt"
kv = "bf16"
prefill_chunk = 128
[tensorrt]
compute_capability = "SM110"
"""


def test_a_recipe_for_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(DEVICE + "profiles = [1, 8, 16]\nside_by_side_fusion = false\n")
    recipe = load_recipe(path)
    assert (recipe.target, recipe.kv, recipe.tree_nodes, recipe.prefill_chunk) == ("tensorrt", "bf16", 16, 128)
    assert recipe.tensorrt == TensorRtRecipe("SM110", profiles=(1, 8, 16), side_by_side_fusion=False)


@pytest.mark.parametrize("name", ["qwen3.6-27b-nvfp4-thor", "nvfp4-rtx", "nvfp4-rtx-whole"])
def test_shipped_recipes_for_devices(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.tensorrt is not None
    assert recipe.target == ("tensorrt" if "thor" in name else "tensorrt-rtx")
    assert recipe.speculation.nodes <= recipe.tree_nodes


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[tensorrt]", "precision = 'f32'\n[tensorrt]", "precision is not used by target tensorrt"),
        ("[tensorrt]", "block_size = 32\n[tensorrt]", "block_size is not used by target tensorrt"),
        ("[tensorrt]", "accuracy_level = 4\n[tensorrt]", "accuracy_level is not used"),
        ("[tensorrt]", "activations = 'f32'\n[tensorrt]", "activations is not used"),
        ('[tensorrt]\ncompute_capability = "SM110"', "", r"needs the table \[tensorrt\]"),
        ('[tensorrt]\ncompute_capability = "SM110"', "tensorrt = 1", "tensorrt must be a table"),
        ('compute_capability = "SM110"', "", "tensorrt.compute_capability is missing"),
        ("SM110", "11.0", "tensorrt.compute_capability must have the form"),
        ('"SM110"', "110", "tensorrt.compute_capability must have the form"),
        ('"SM110"', '"SM110"\nform = "split"', "kv must be fp8 in the form split.* got 'bf16'"),
        ('"SM110"', '"SM110"\nform = "plugins"', "kv must be fp8 in the form plugins|plugins needs target tensorrt"),
        ('"SM110"', '"SM110"\nform = "half"', "tensorrt.form must be one of whole, split, plugins"),
        ('"SM110"', '"SM110"\nactivations = "f32"', "tensorrt.activations must be one of bf16, f16"),
        ('"SM110"', '"SM110"\nactivations = "f16"', "kv must be f16, as tensorrt.activations are, got 'bf16'"),
        ('"bf16"', '"fp8"', "kv must be bf16.* no kernel for rows in FP8"),
        ('"SM110"', '"SM110"\nprofiles = [1, 8]', "tree_nodes must be the largest of tensorrt.profiles, 8, got 16"),
        ('"SM110"', '"SM110"\nprofiles = [16, 1]', "tensorrt.profiles must be ascending"),
        ('"SM110"', '"SM110"\nprofiles = []', "tensorrt.profiles must be ascending"),
        ('"SM110"', '"SM110"\nprofiles = 16', "tensorrt.profiles must be an array"),
        ('"SM110"', '"SM110"\nprofiles = ["1", "16"]', "tensorrt.profiles must be an integer"),
        ('"SM110"', '"SM110"\nprofiles = [1, 17]', "tensorrt.profiles must be an integer from 1 to 16"),
        ('"SM110"', '"SM110"\nside_by_side_fusion = 1', "side_by_side_fusion must be true or false"),
        ('"SM110"', '"SM110"\nworkspace = 1', "unknown key 'workspace'"),
        ("128", "100", "prefill_chunk must be a multiple of 64, got 100"),
    ],
)
def test_wrong_recipes_for_devices_are_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "mine.toml"
    assert old in DEVICE
    path.write_text(DEVICE.replace(old, new))
    with pytest.raises(ConfigError, match=named) as caught:
        load_recipe(path)
    assert "mine.toml" in str(caught.value)


def test_the_plugins_trees_leave_aligned_capsules(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    changed = DEVICE.replace('"SM110"', '"SM110"\nform = "plugins"\nprofiles = [1, 10]').replace('"bf16"', '"fp8"')
    path.write_text(changed.replace("[tensorrt]", "tree_nodes = 10\n[tensorrt]"))
    with pytest.raises(ConfigError, match="tree_nodes must be a multiple of 4 in the form plugins, got 10"):
        load_recipe(path)


def test_no_such_recipe() -> None:
    with pytest.raises(ConfigError, match="cpu-int8"):
        load_recipe("gpu")
