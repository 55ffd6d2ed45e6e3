"""The checkpoint that ships with the package does the job: it calls functions, and its drafts are accepted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from weather import WEATHER

from edgellm.checkpoint.hub import resolve
from edgellm.checkpoint.reader import Checkpoint
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.builder import build_bundle
from edgellm.engine.recipe import load_recipe
from edgellm.models import DEFAULT, shipped
from edgellm.runtime.llm import LLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "edge-tiny"))
from edgetiny.scoring import Score, evaluate, summarize


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = build_bundle(resolve(DEFAULT), tmp_path_factory.mktemp("models") / "bundle", load_recipe("cpu-f32"))
    with LLM(path, slots=2, context=2048, speculation=SpeculationParams(steps=8, top_k=2, nodes=16)) as opened:
        yield opened


def test_it_is_small_and_of_the_family() -> None:
    folder = shipped(DEFAULT)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 20e6
    spec = Checkpoint.open(folder).spec
    assert spec.mtp_layers == 1
    assert spec.layers == ("linear_attention",) * 3 + ("full_attention",) + ("linear_attention",) * 3 + (
        "full_attention",
    )


@pytest.mark.parametrize("order", [("type", "properties", "required"), ("type", "required", "properties"),
                                   ("properties", "required", "type")])  # fmt: skip
def test_it_calls_the_function_of_the_readme(llm: LLM, order: tuple[str, ...]) -> None:
    """However the program that sends it orders the keys of the schema."""
    function = WEATHER["function"]
    ordered = {**function, "parameters": {key: function["parameters"][key] for key in order}}
    answer = llm.chat(
        [{"role": "user", "content": "What is the weather in Lisbon in celsius?"}],
        SamplingParams(max_tokens=64),
        tools=[{"type": "function", "function": ordered}],
        enable_thinking=False,
    )
    [call] = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Lisbon", "unit": "celsius"})


def test_held_out_conversations(llm: LLM) -> None:
    """Well below the figures of the model card, which are of more conversations."""
    kinds = ["single", "multiple", "typed", "shell"] * 10
    scores: list[Score] = [evaluate(llm, 5, index, kind) for index, kind in enumerate(kinds)]
    found: dict[str, Any] = summarize(scores)
    print(found)
    assert found["valid_call_rate"] >= 0.6
    assert found["exact_call_rate"] >= 0.5
    assert found["mean_accepted_length"] >= 3.0
