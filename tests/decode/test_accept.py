"""The walk over a verified tree: what is emitted, what is committed, where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.decode.accept import Accepted, accept_row, accept_tree
from edgellm.decode.params import SamplingParams
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import Finish, StopRule
from edgellm.engine.base import TokenTree

VOCAB = 20
#            0
#          /   \
#         1     2        tokens 1, 2
#       /   \     \
#      3     4     5     tokens 3, 4, 5
#      |
#      6                 token 6
TREE = TokenTree(0, [0, 1, 2, 3, 4, 5, 6], [-1, 0, 0, 1, 1, 2, 3])


class Says:
    """Logits whose best token in each row is given."""

    def __init__(self, best: Sequence[int]) -> None:
        self._data = np.zeros((len(best), VOCAB), np.float32)
        self._data[np.arange(len(best)), list(best)] = 9.0

    @property
    def rows(self) -> int:
        return len(self._data)

    def greedy(self) -> NDArray[np.int64]:
        return self._data.argmax(axis=1)

    def row(self, index: int) -> NDArray[np.float32]:
        return self._data[index]


def walk(best: Sequence[int], params: SamplingParams | None = None, *, eos: Sequence[int] = ()) -> Accepted:
    params = params or SamplingParams()
    stop = StopRule.of(params, eos_token_ids=eos, prompt_tokens=1, context=100)
    sampler = Sampler(params, [9], ending=stop.ending)
    sampler.advance(TREE.tokens[0])  # the root was generated
    outcome = accept_tree(TREE, Says(best), sampler, stop)
    assert sampler.generated == 1 + len(outcome.tokens)
    assert [TREE.tokens[node] for node in outcome.path[1:]] == list(outcome.tokens[:-1])
    return outcome


@pytest.mark.parametrize(
    ("best", "path", "tokens"),
    [
        ((7, 0, 0, 0, 0, 0, 0), (0,), (7,)),
        ((2, 0, 8, 0, 0, 0, 0), (0, 2), (2, 8)),
        ((1, 4, 0, 0, 9, 0, 0), (0, 1, 4), (1, 4, 9)),
        ((1, 3, 0, 6, 0, 0, 11), (0, 1, 3, 6), (1, 3, 6, 11)),
        ((1, 5, 0, 0, 0, 0, 0), (0, 1), (1, 5)),  # 5 is in the tree, but not below 1
    ],
)
def test_follows_the_draws(best: tuple[int, ...], path: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    assert walk(best) == Accepted(path, tokens)


def test_nothing_after_eos_inside_the_tree() -> None:
    outcome = walk((1, 3, 0, 6, 0, 0, 11), eos=[3])
    assert outcome == Accepted((0, 1), (1, 3), Finish("stop"))
    assert walk((1, 3, 0, 6, 0, 0, 11), SamplingParams(ignore_eos=True), eos=[3]).tokens == (1, 3, 6, 11)


def test_stop_token_inside_the_tree_is_the_reason() -> None:
    outcome = walk((1, 3, 0, 6, 0, 0, 11), SamplingParams(stop_token_ids=(1,), ignore_eos=True), eos=[1])
    assert outcome == Accepted((0,), (1,), Finish("stop", 1))


@pytest.mark.parametrize("limit", [2, 3, 4, 5])
def test_output_limit_inside_the_tree(limit: int) -> None:
    outcome = walk((1, 3, 0, 6, 0, 0, 11), SamplingParams(max_tokens=limit))
    assert outcome.tokens == (1, 3, 6, 11)[: limit - 1]
    assert outcome.finish == Finish("length")


def test_eos_as_the_last_allowed_token_is_a_stop() -> None:
    assert walk((1, 3, 0, 6, 0, 0, 11), SamplingParams(max_tokens=3), eos=[3]).finish == Finish("stop")


def test_min_tokens_ends_in_the_middle_of_the_walk() -> None:
    """The root is the first token, 1 the second: EOS is masked for the second and allowed as the third."""
    outcome = walk((3, 3, 0, 6, 0, 0, 11), SamplingParams(min_tokens=2, logit_bias={1: 5.0}), eos=[3])
    assert outcome == Accepted((0, 1), (1, 3), Finish("stop"))


def test_penalties_see_the_path() -> None:
    """Row 1 prefers token 1 again; the penalty for having just said it decides for the runner-up."""
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0, logit_bias={1: -3.0, 4: 3.0})
    assert walk((1, 1, 0, 0, 9, 0, 0), params).tokens == (1, 4, 9)


def test_logprobs_and_margins_cover_exactly_the_tokens() -> None:
    params = SamplingParams(logprobs=2)
    stop = StopRule.of(params, eos_token_ids=[6], prompt_tokens=1, context=100)
    sampler = Sampler(params, [9], margins=True)
    outcome = accept_tree(TREE, Says((1, 3, 0, 6, 0, 0, 11)), sampler, stop)
    assert [entry.token_id for entry in outcome.logprobs] == list(outcome.tokens) == [1, 3, 6]
    assert outcome.margins == (9.0, 9.0, 9.0)
    assert all(len(entry.top) == 2 for entry in outcome.logprobs)
    cut = outcome.first(2)
    assert cut == Accepted((0, 1), (1, 3), None, outcome.logprobs[:2], (9.0, 9.0))
    assert outcome.first(3) is outcome


def test_a_row_of_plain_decoding() -> None:
    stop = StopRule.of(SamplingParams(), eos_token_ids=[4], prompt_tokens=1, context=100)
    sampler = Sampler(SamplingParams(), [9])
    logits = Says((3, 4))
    assert accept_row(logits, 0, sampler, stop) == Accepted((0,), (3,))
    assert accept_row(logits, 1, sampler, stop) == Accepted((0,), (4,), Finish("stop"))
    assert sampler.generated == 2


@pytest.mark.parametrize(("prompt", "max_tokens", "limit"), [(90, None, 10), (90, 4, 4), (90, 40, 10), (100, None, 0)])
def test_prompt_and_output_fill_at_most_the_context(prompt: int, max_tokens: int | None, limit: int) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    stop = StopRule.of(params, eos_token_ids=(), prompt_tokens=prompt, context=100)
    assert stop.limit == stop.remaining(0) == limit
