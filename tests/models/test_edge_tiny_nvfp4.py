"""The NVFP4 form that ships beside edge-tiny: the same model, calibrated, and it still does the job."""

from __future__ import annotations

import json
from pathlib import Path

from weather import WEATHER

from edgellm.checkpoint.hub import resolve
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.decode.params import SamplingParams
from edgellm.engine.builder import build_bundle, default_recipe
from edgellm.engine.recipe import load_recipe
from edgellm.models import DEFAULT, shipped
from edgellm.quantize.loss import weight_errors
from edgellm.runtime.llm import LLM

NVFP4 = f"{DEFAULT}-nvfp4"


def test_it_is_the_same_model_with_scales_of_activations_and_caches() -> None:
    plain, quantized = Checkpoint.open(resolve(DEFAULT)), Checkpoint.open(resolve(NVFP4))
    assert quantized.warnings == ()
    assert quantized.spec == plain.spec
    assert len(quantized.kv_scales) == len(plain.spec.full_layers) + 1
    errors = weight_errors(plain, quantized)
    assert len(errors) == 58
    for error in errors:
        weight = quantized.weight(f"{error.module}.weight")
        assert isinstance(weight, Nvfp4Weight)
        assert weight.input_scale is not None
        assert error.relative < 0.12, error


def test_both_forms_are_small() -> None:
    folders = [shipped(DEFAULT), shipped(NVFP4)]
    assert sum(path.stat().st_size for folder in folders if folder for path in folder.iterdir()) <= 20e6


def test_it_calls_the_function_of_the_readme(tmp_path: Path) -> None:
    source = Checkpoint.open(resolve(NVFP4))
    assert default_recipe(source) == "cpu-nvfp4"
    bundle = build_bundle(source, tmp_path / "bundle", load_recipe("cpu-nvfp4"))
    with LLM(bundle, slots=1, context=2048) as llm:
        asked = [{"role": "user", "content": "What is the weather in Lisbon in celsius?"}]
        answer = llm.chat(asked, SamplingParams(max_tokens=64), tools=[WEATHER], enable_thinking=False)
    [call] = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Lisbon", "unit": "celsius"})
