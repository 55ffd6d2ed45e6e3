"""Constrained answers through the engine: they fit, reasoning stays free, and speculation changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.scripts import HashScript
from edgellm.errors import RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.text.grammars import json_grammar
from edgellm.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["alpha", "beta", "gamma"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
        "level": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["kind", "flags", "level"],
    "additionalProperties": False,
}
SHAPES = (None, SpeculationParams(4, 1, 5), SpeculationParams(8, 2, 16))


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids)


def checked(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["kind", "flags", "level"]
    assert value["kind"] in ("alpha", "beta", "gamma")
    assert all(isinstance(flag, bool) for flag in value["flags"])
    assert 0 <= value["level"] <= 9


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_any_model_writes_what_the_schema_says(
    open_rig: Callable[..., Any], tokenizer: Tokenizer, constraints: Constraints, temperature: float
) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids)
    for seed in range(6):
        sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=400)
        found = []
        for shape in SHAPES:
            constraint = constraints.make(json_grammar(SCHEMA), param="x", thinking_open=False)
            found.append(rig.run([1, 2, seed], sampling, constraint=constraint, speculation=shape))
        assert all(result.token_ids == found[0].token_ids for result in found)
        if found[0].finish_reason == "stop":
            checked(found[0].text)
    rig.settle()


def test_reasoning_is_free_and_closed_by_its_budget(
    open_rig: Callable[..., Any], tokenizer: Tokenizer, constraints: Constraints
) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids)
    for budget in (0, 1, 7):
        found = []
        for shape in SHAPES:
            constraint = constraints.make(
                json_grammar(SCHEMA), param="x", thinking_open=True, max_thinking_tokens=budget
            )
            sampling = SamplingParams(temperature=1.0, seed=budget, max_tokens=400)
            found.append(rig.run([3, budget], sampling, constraint=constraint, speculation=shape))
        assert all(result.token_ids == found[0].token_ids for result in found)
        end = found[0].token_ids.index(tokenizer.added["</think>"])
        assert end <= budget + 4
        thought, _, answer = found[0].text.partition("</think>")
        assert thought.endswith("\n")
        if found[0].finish_reason == "stop":
            checked(answer)


def test_a_budget_alone_leaves_the_answer_free(
    open_rig: Callable[..., Any], tokenizer: Tokenizer, constraints: Constraints
) -> None:
    rig = open_rig(HashScript(tokenizer.vocab_size), eos=tokenizer.eos_token_ids)
    constraint = constraints.make(None, param="x", thinking_open=True, max_thinking_tokens=5)
    result = rig.run([5], SamplingParams(temperature=1.0, seed=1, max_tokens=40), constraint=constraint)
    assert tokenizer.added["</think>"] in result.token_ids[5:10]
    assert constraints.make(None, param="x", thinking_open=True) is None
    assert constraints.make(None, param="x", thinking_open=False, max_thinking_tokens=5) is None


def test_a_model_without_an_end_tag_says_so(tokenizer: Tokenizer, constraints: Constraints) -> None:
    tags = dict(tokenizer.added)
    try:
        del tokenizer.added["</think>"]
        with pytest.raises(RequestError, match="no </think> token") as caught:
            constraints.make(None, param="x", thinking_open=True, max_thinking_tokens=5)
        assert caught.value.param == "max_thinking_tokens"
    finally:
        tokenizer.added.update(tags)
