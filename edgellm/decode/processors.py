"""What changes logits before the draw: bias, penalties, the constraint's mask, the ban on ending too early.

The history is kept as it grows, token by token along the emitted path, so a row of a tree node sees exactly what plain
decoding would have seen there. What must stay true: rows of the executor are never written to, and nothing the size of
the vocabulary is touched while no processor is active.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.constraint import Constraint
from edgellm.decode.params import SamplingParams
from edgellm.errors import RequestError


class _Counts:
    """Distinct tokens in order of appearance and how often each was seen, as arrays that grow."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._times = np.zeros(64, np.float32)

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._ids[place] = token
        self._times[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._place)]

    @property
    def times(self) -> NDArray[np.float32]:
        return self._times[: len(self._place)]


class Processors:
    """The processors of one sequence.

    Args:
        params: of the request.
        prompt: its prompt; counts for the repetition penalty.
        ending: tokens that end the sequence; masked until `params.min_tokens` are out.
        constraint: a grammar or the like.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], ending: Collection[int], constraint: Constraint | None
    ) -> None:
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._seen: _Counts | None = None
        if params.repetition_penalty != 1.0:
            self._seen = _Counts()
            for token in dict.fromkeys(prompt):
                self._seen.add(token)
        self._said = _Counts() if params.presence_penalty or params.frequency_penalty else None
        self._ending = np.array(sorted(ending), np.int64)
        self._banned_for = params.min_tokens if ending else 0
        self._constraint = constraint
        self._static = bool(len(self._bias_ids)) or self._seen is not None or self._said is not None
        self._work: NDArray[np.float32] | None = None

    @property
    def active(self) -> bool:
        """Whether the next row may be changed at all."""
        return self._static or self._banned_for > 0 or self._constraint is not None

    def apply(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """`row` [vocab] as the processors leave it: itself when none is active, else an array kept until the next call.

        Raises:
            RequestError: the constraint allows no token.
        """
        if not self.active:
            return row
        if self._work is None:
            self._work = np.empty_like(row)
        work = self._work
        np.copyto(work, row)
        if len(self._bias_ids):
            work[self._bias_ids] += self._bias
        if self._seen is not None:
            values = work[self._seen.ids]
            work[self._seen.ids] = np.where(values > 0, values / self._repetition, values * self._repetition)
        if self._said is not None:
            work[self._said.ids] -= self._presence + self._frequency * self._said.times
        mask = None if self._constraint is None else self._constraint.mask()
        if mask is not None:
            np.copyto(work, -np.inf, where=~mask)
            if not mask.any():
                raise RequestError("the constraint allows no token here", code="constraint_dead_end")
        if self._banned_for > 0:
            kept = work[self._ending]
            work[self._ending] = -np.inf
            if mask is not None and work.max() == -np.inf:  # a constraint that has to end outranks min_tokens
                work[self._ending] = kept
        return work

    def advance(self, token: int) -> None:
        """`token` was emitted."""
        if self._seen is not None:
            self._seen.add(token)
        if self._said is not None:
            self._said.add(token)
        if self._banned_for > 0:
            self._banned_for -= 1
        if self._constraint is not None:
            self._constraint.advance(token)
