"""Choosing the next token of one sequence.

What must stay true: a draw depends on the row, the tokens so far and (seed, position), and on nothing else. Whether
the row came from a chain, a tree or a batch, or after a cache hit, makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.constraint import Constraint
from edgellm.decode.filtering import candidates
from edgellm.decode.logprobs import TokenLogprob, token_logprob
from edgellm.decode.margin import greedy_margin, sampled_margin
from edgellm.decode.params import SamplingParams
from edgellm.decode.processors import Processors
from edgellm.decode.randomness import GUMBEL_MAX, gumbel
from edgellm.engine.base import Logits
from edgellm.errors import EdgeLLMError

_CHUNK = 16384
GREEDY_BELOW = 1e-5  # temperatures below this are greedy


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn token."""

    token: int
    logprob: TokenLogprob | None = None  # when params.logprobs is set
    margin: float | None = None  # when the sampler was made with margins=True; see decode/margin.py


class Sampler:
    """The sampling state of one sequence: `draw` looks, `advance` moves on by one emitted token.

    Args:
        params: of the request; its token ids are within the vocabulary.
        prompt: tokens before the first draw. The position of a draw is the number of tokens before it.
        ending: tokens that end the sequence (`StopRule.ending`); masked during the first `params.min_tokens`.
        constraint: restricts the next token; see decode/constraint.py.
        margins: report how nearly tied each draw was (slow; for tests).
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        ending: Collection[int] = (),
        constraint: Constraint | None = None,
        margins: bool = False,
    ) -> None:
        self._params = params
        self._processors = Processors(params, prompt, ending, constraint)
        self._greedy = params.temperature < GREEDY_BELOW
        self._margins = margins
        self._prompt_tokens = len(prompt)
        self.generated = 0  # tokens emitted so far

    @property
    def position(self) -> int:
        """Index in the sequence of the next token to draw."""
        return self._prompt_tokens + self.generated

    def draw(self, logits: Logits, index: int) -> Draw:
        """The token that follows, given its row. Does not change the state.

        Raises:
            RequestError: the constraint allows no token.
            EdgeLLMError: the row's maximum is not a number: the model's output is broken.
        """
        params = self._params
        if self._greedy and params.logprobs is None and not self._margins and not self._processors.active:
            return Draw(int(logits.greedy()[index]))
        raw = logits.row(index)
        row = self._processors.apply(raw)
        token = int(row.argmax()) if self._greedy else self._sample(row)
        if self._greedy:
            self._check(float(row[token]))
        return Draw(
            token,
            None if params.logprobs is None else token_logprob(raw, token, params.logprobs),
            self._margin(row, token) if self._margins else None,
        )

    def advance(self, token: int) -> None:
        """`token` was emitted."""
        self.generated += 1
        self._processors.advance(token)

    def _sample(self, row: NDArray[np.float32]) -> int:
        params = self._params
        best = float(row.max())
        self._check(best)
        ids = candidates(row, best, params.temperature, params.top_k, params.top_p, params.min_p)
        if ids is not None:
            return int(ids[self._scores(row[ids], best, ids).argmax()])
        winner, score = int(row.argmax()), -np.inf
        for at in range(0, len(row), _CHUNK):  # in pieces that stay in the core's cache
            part = row[at : at + _CHUNK]
            if (float(part.max()) - best) / params.temperature + GUMBEL_MAX < score:
                continue  # no luck is enough
            scores = self._scores(part, best, np.arange(at, at + len(part)))
            place = int(scores.argmax())
            if scores[place] > score:
                winner, score = at + place, float(scores[place])
        return winner

    def _scores(self, values: NDArray[np.float32], best: float, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        scores = gumbel(self._params.seed, self.position, ids)
        scores += (values.astype(np.float64) - best) / self._params.temperature
        return scores

    def _check(self, best: float) -> None:
        if not np.isfinite(best):
            raise EdgeLLMError(f"logits at position {self.position} are not finite (maximum {best})")

    def _margin(self, row: NDArray[np.float32], token: int) -> float:
        params = self._params
        if self._greedy:
            return greedy_margin(row)
        return sampled_margin(
            row,
            token,
            seed=params.seed,
            position=self.position,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )
