"""Bytes of weights: against tensors, against files, and for every recipe."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.builder import build_bundle
from edgellm.engine.recipe import Recipe, load_recipe
from edgellm.jetson.precision import BYTES, VARIANTS, checkpoint_precision, recipe_precision, weight_counts
from edgellm.jetson.sequence import rotary_bytes
from edgellm.models import shipped


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for its matrices to outweigh the constants of the graphs."""
    path = tmp_path_factory.mktemp("precision") / "mid"
    make_checkpoint("mid", path, num_hidden_layers=4)
    return path


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_parts_add_up_to_the_model(preset: str) -> None:
    spec = ModelSpec.from_config(PRESETS[preset].config)
    assert sum(weight_counts(spec).values()) == sum(math.prod(shape) for shape in spec.expected_tensors().values())


def test_a_tied_head_is_the_embeddings() -> None:
    spec = ModelSpec.from_config(PRESETS["qwen36-vocab"].config)
    precision = VARIANTS["nvfp4"]
    assert weight_counts(spec)["head"] == 0
    assert precision.head_bytes(spec) == spec.vocab * spec.hidden * precision.embeddings
    assert precision.head_bytes(replace(spec, tied_embeddings=False)) == spec.vocab * spec.hidden * BYTES["nvfp4"]


@pytest.mark.parametrize("recipe", ["cpu-f32", "cpu-int8", "cpu-int4"])
def test_the_plan_says_what_a_bundle_weighs(recipe: str, large: Path, tmp_path: Path) -> None:
    chosen = load_recipe(recipe)
    bundle = build_bundle(large, tmp_path / "bundle", chosen)
    spec = Checkpoint.open(large).spec
    written = max(path.stat().st_size for path in bundle.iterdir())  # the one weight file
    planned = sum(recipe_precision(chosen, recipe).weight_bytes(spec).values())
    assert planned + rotary_bytes(spec, spec.max_positions) == pytest.approx(written, rel=0.01)


@pytest.mark.parametrize("name", ["edge-tiny", "edge-tiny-nvfp4"])
def test_the_plan_says_what_a_checkpoint_weighs(name: str) -> None:
    folder = shipped(name)
    assert folder is not None
    checkpoint = Checkpoint.open(folder)
    planned = sum(checkpoint_precision(checkpoint).weight_bytes(checkpoint.spec).values())
    assert planned == pytest.approx(sum(path.stat().st_size for path in checkpoint.weight_files), rel=0.03)


def test_a_cpu_keeps_its_cache_in_float32_whatever_the_rows_hold() -> None:
    assert recipe_precision(Recipe(kv="fp8"), "").kv == 4
