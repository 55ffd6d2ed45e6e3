"""What generation_config.json recommends is kept in the bundle, checked, and nothing else of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.engine.recommended import recommended_sampling
from edgellm.errors import CheckpointError

QWEN = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 5, "transformers_version": "5.0"}, {}),
        ({**QWEN, "max_new_tokens": 5}, {"temperature": 1.0, "top_p": 0.95, "top_k": 20}),
        ({"temperature": 0.6, "min_p": None}, {"temperature": 0.6}),
        ({**QWEN, "do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "repetition_penalty": 1.1}, {"temperature": 0.0, "repetition_penalty": 1.1}),
        ({"top_k": -1}, {"top_k": 0}),
    ],
)
def test_fields_that_are_kept(config: dict[str, Any], expected: dict[str, float]) -> None:
    assert recommended_sampling(config) == expected


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": 3}, "temperature must be from 0 to 2"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"do_sample": "yes"}, "do_sample must be true"),
    ],
)
def test_wrong_values_are_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json(: |\.){named}"):
        recommended_sampling(config)


def test_a_bundle_has_them(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("tiny", tmp_path / "checkpoint")
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **QWEN}))
    bundle = build_bundle(checkpoint, tmp_path / "bundle", load_recipe("cpu-f32"))
    assert Bundle.open(bundle).manifest.sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
