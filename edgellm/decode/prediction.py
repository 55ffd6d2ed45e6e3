"""Drafts from a text that the answer is expected to repeat, such as the file that it edits.

Where the answer follows the text, what comes next in it is the draft: one path, without a draft layer. Where it leaves
the text, its last few tokens are looked up to find the place where it goes on. What must stay true: a prediction
decides only what is verified, never what is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np

_RUN: Final = 3  # equal tokens that tell a place
_BITS: Final = 21  # of a token in the key of a run; keys that collide cost a draft
_FIRST: Final = 4  # tokens of a draft until drafts are taken whole


class Prediction:
    """The predicted tokens with an index of their runs, 24 bytes a token. Immutable; several answers may share one.

    `least` and `greatest` bound the tokens and 0.
    """

    __slots__ = ("_places", "_runs", "greatest", "least", "tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        ids = np.array(self.tokens, np.int64)
        self.least, self.greatest = int(ids.min(initial=0)), int(ids.max(initial=0))
        runs = ids[: len(ids) - 2] << 2 * _BITS | ids[1:-1] << _BITS | ids[2:] if len(ids) >= _RUN else ids[:0]
        order = np.argsort(runs, kind="stable")
        self._runs, self._places = runs[order], order + _RUN

    @classmethod
    def of(cls, tokens: Sequence[int], limit: int) -> Self | None:
        """A prediction of the first `limit` of `tokens`; None when there are none."""
        return cls(tokens[:limit]) if len(tokens) > 0 else None

    def behind(self, run: Sequence[int], left: int) -> int | None:
        """The place behind an occurrence of `run` (three tokens): the first after the place `left`, else the first.

        None if the run does not occur.
        """
        if len(run) < _RUN:
            return None
        key = run[0] << 2 * _BITS | run[1] << _BITS | run[2]
        first, end = np.searchsorted(self._runs, key, "left"), np.searchsorted(self._runs, key, "right")
        if first == end:
            return None
        places = self._places[first:end]  # ascending: the sort is stable
        index = int(np.searchsorted(places, left, "right"))
        return int(places[index if index < len(places) else 0])


class PredictionReader:
    """Follows one answer along its prediction."""

    __slots__ = ("_following", "_place", "_prediction", "_seen", "_size")

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        self._place = 0  # of the next token, or where the text was left
        self._following = True
        self._seen = 0  # tokens of the answer
        self._size = _FIRST

    def draft(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """The tokens that should come next, at most `limit`; none where the answer does not follow the text.

        Args:
            answer: all its tokens so far: those of the last call and what came since.
        """
        for end in range(self._seen + 1, len(answer) + 1):
            self._follow(answer, end)
        self._seen = len(answer)
        size = min(limit, self._size)
        return self._prediction.tokens[self._place : self._place + size] if self._following and size > 0 else ()

    def judge(self, drafted: int, accepted: int) -> None:
        """What became of the last draft: drafts grow while they are taken whole and shrink when they are not."""
        longest = len(self._prediction.tokens)
        self._size = min(2 * self._size, longest) if accepted == drafted else max(accepted, 1)

    def _follow(self, answer: Sequence[int], end: int) -> None:
        """Take answer[end - 1] in."""
        tokens = self._prediction.tokens
        if self._following and self._place < len(tokens) and tokens[self._place] == answer[end - 1]:
            self._place += 1
            return
        place = self._prediction.behind(answer[max(end - _RUN, 0) : end], self._place)
        self._following = place is not None
        if place is not None:
            self._place = place
