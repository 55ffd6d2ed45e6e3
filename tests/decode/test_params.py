"""Parameters are checked on construction and the field at fault is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 2.3e-308),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("seed", 1.0),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop", "one string"),
        ("stop", ("a",) * 17),
        ("logit_bias", {-1: 1.0}),
    ],
)
def test_out_of_range_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**{field: value})
    assert error.value.param == field
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ("a", "")}, "stop[1]"),
        ({"stop_token_ids": (3, -1)}, "stop_token_ids[1]"),
        ({"logit_bias": {3: 101.0}}, "logit_bias.3"),
        ({"logit_bias": {3: math.nan}}, "logit_bias.3"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_elements_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**fields)
    assert error.value.param == param


@pytest.mark.parametrize("field", ["steps", "top_k", "nodes"])
def test_speculation_ranges(field: str) -> None:
    for value in (-1, 1000, 1.5):
        with pytest.raises(RequestError) as error:
            SpeculationParams(**{field: value})
        assert error.value.param == f"speculation.{field}"


def test_any_integer_is_a_seed_and_bounds_are_allowed() -> None:
    assert SamplingParams(seed=-1).seed == 2**64 - 1
    assert SamplingParams(seed=2**64 + 5).seed == 5
    SamplingParams(temperature=2, top_p=1, min_p=1, presence_penalty=-2, max_tokens=1, min_tokens=1, logprobs=20)


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,)).check_vocab(10)
    for params, name in (
        (SamplingParams(logit_bias={10: 1.0}), "logit_bias.10"),
        (SamplingParams(stop_token_ids=(10,)), "stop_token_ids[0]"),
    ):
        with pytest.raises(RequestError) as error:
            params.check_vocab(10)
        assert error.value.param == name


def test_the_given_containers_are_not_shared() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 1e9
    assert params.logit_bias == {1: 2.0}
