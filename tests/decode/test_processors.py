"""Processors equal a plain re-computation from the whole history at every position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgellm.decode.params import SamplingParams
from edgellm.decode.processors import Processors
from edgellm.errors import RequestError

VOCAB = 23


class FixedMask:
    def __init__(self, *allowed: int) -> None:
        self._mask = np.zeros(VOCAB, np.bool_)
        self._mask[list(allowed)] = True

    def mask(self) -> NDArray[np.bool_]:
        return self._mask

    def advance(self, token: int) -> None:
        pass


def reference(row: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    logits = [float(value) for value in row]
    for token in range(VOCAB):
        logits[token] += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            penalty = params.repetition_penalty
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        count = output.count(token)
        if count:
            logits[token] -= params.presence_penalty + params.frequency_penalty * count
    return logits


@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=40),
    st.lists(st.integers(0, VOCAB - 1), max_size=150),
    st.floats(0.1, 3),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4),
    st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_history(
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    seed: int,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias
    )
    processors = Processors(params, prompt, (), None)
    rng = np.random.default_rng(seed)
    for place in range(len(output) + 1):
        if place % 25 == 0 or place == len(output):
            row = rng.normal(0, 4, VOCAB).astype(np.float32)
            row.flags.writeable = False
            expected = reference(row, params, prompt, output[:place])
            np.testing.assert_allclose(processors.apply(row), expected, rtol=1e-5, atol=1e-3)
        if place < len(output):
            processors.advance(output[place])


def test_many_distinct_tokens() -> None:
    params = SamplingParams(frequency_penalty=1.0, repetition_penalty=2.0)
    processors = Processors(params, range(100), (), None)
    for token in range(50, 500):
        processors.advance(token)
    row = np.ones(600, np.float32)
    result = processors.apply(row)
    assert result[0] == 0.5
    assert result[60] == result[499] == -0.5
    assert result[500] == 1.0


def test_nothing_is_touched_when_inactive() -> None:
    processors = Processors(SamplingParams(temperature=1.0, top_k=3), [1, 2], (0,), None)
    row = np.zeros(VOCAB, np.float32)
    assert not processors.active
    assert processors.apply(row) is row


def test_min_tokens_masks_every_ending_until_then() -> None:
    processors = Processors(SamplingParams(min_tokens=2), [], (0, 5), None)
    row = np.ones(VOCAB, np.float32)
    for left in (2, 1):
        assert processors.active
        masked = processors.apply(row)
        assert np.flatnonzero(np.isneginf(masked)).tolist() == [0, 5], left
        processors.advance(1)
    assert not processors.active


def test_the_constraint_decides_what_is_allowed() -> None:
    params = SamplingParams(logit_bias={3: 100.0})
    processors = Processors(params, [], (), FixedMask(1, 2))
    assert np.flatnonzero(np.isfinite(processors.apply(np.zeros(VOCAB, np.float32)))).tolist() == [1, 2]


@pytest.mark.parametrize(("allowed", "kept"), [((0, 4), [4]), ((0,), [0])])
def test_a_constraint_that_has_to_end_outranks_min_tokens(allowed: Any, kept: list[int]) -> None:
    processors = Processors(SamplingParams(min_tokens=9), [], (0,), FixedMask(*allowed))
    assert np.flatnonzero(np.isfinite(processors.apply(np.zeros(VOCAB, np.float32)))).tolist() == kept


def test_a_dead_end_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError) as error:
        Processors(SamplingParams(), [], (), FixedMask()).apply(np.zeros(VOCAB, np.float32))
    assert error.value.code == "constraint_dead_end"
