"""Predicted answers through the engine: fewer steps where they are right, the same tokens whatever they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.prediction import Prediction
from edgellm.engine.scripts import HashScript
from edgellm.errors import RequestError
from edgellm.text.tokenizer import Tokenizer

SHAPES = (SpeculationParams(0), SpeculationParams(8, 2, 16))


def predictions(answer: list[int]) -> dict[str, list[int]]:
    edited = [*answer[:20], 7, 7, *answer[23:40], *answer[45:]]
    return {"right": answer, "edited": edited, "late": answer[30:], "wrong": [1] * 50, "longer": [*answer, *answer]}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_answer_is_the_same(
    open_rig: Callable[..., Any], tokenizer: Tokenizer, temperature: float, shape: SpeculationParams
) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids)
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=100, ignore_eos=True)
    plain = rig.run([1, 2, 3], sampling, speculation=SpeculationParams(0))
    assert plain.usage.predicted_tokens == 0
    for name, tokens in predictions(list(plain.token_ids)).items():
        result = rig.run([1, 2, 3], sampling, speculation=shape, prediction=Prediction(tokens))
        assert (result.token_ids, result.text) == (plain.token_ids, plain.text), name
        used = result.usage
        assert 0 <= used.accepted_predicted_tokens <= used.predicted_tokens <= used.drafted_tokens
        assert used.accepted_predicted_tokens <= used.accepted_tokens
        if name in ("right", "longer"):
            assert used.accepted_predicted_tokens == used.predicted_tokens > 85
            assert used.verify_steps < 12
        elif name == "edited":
            assert used.accepted_predicted_tokens > 50
    rig.settle()


def test_without_verification_a_prediction_has_no_effect(open_rig: Callable[..., Any], tokenizer: Tokenizer) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids, max_tree=0)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    plain = rig.run([1, 2], sampling)
    result = rig.run([1, 2], sampling, prediction=Prediction(plain.token_ids))
    assert result.token_ids == plain.token_ids
    assert result.usage.predicted_tokens == 0
    rig.settle()


def test_tokens_of_another_model_are_refused(open_rig: Callable[..., Any], tokenizer: Tokenizer) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids)
    with pytest.raises(RequestError, match="prediction: tokens"):
        rig.run([1, 2], SamplingParams(), prediction=Prediction([tokenizer.vocab_size]))
