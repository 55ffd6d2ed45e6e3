"""A reasoning block in front of a constrained answer: free to begin with, closed in time, then the answer's constraint.

What must stay true: the block is always closed by its tag, whatever the budget; nothing of it counts for the answer's
constraint; while an answer is still owed, the turn cannot end inside the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.constraint import Constraint


class ThinkingConstraint:
    """Implements `Constraint` for an answer whose prompt ends inside a reasoning block.

    Args:
        answer: of what follows the block; None when that is free.
        end_tag: the token that ends the block.
        closing: tokens that are emitted when the budget is used up, the end tag among them.
        ending: tokens that end the sequence.
        vocab_size: width of the masks.
        budget: tokens of the block before `closing`, and up to three more to complete a character; None: no limit.
        token_bytes: the bytes that a token stands for.
    """

    def __init__(
        self,
        answer: Constraint | None,
        *,
        end_tag: int,
        closing: Sequence[int],
        ending: Collection[int],
        vocab_size: int,
        budget: int | None,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._answer = answer
        self._end_tag = end_tag
        self._closing = list(closing)
        self._vocab_size = vocab_size
        self._budget = budget
        self._token_bytes = token_bytes
        self._open = True
        self._used = 0
        self._tail = b""  # bytes of a character that is not complete
        self._forced: list[int] = []  # still to be emitted, the next one last
        self._free: NDArray[np.bool_] | None = None
        if answer is not None:
            self._free = np.ones(vocab_size, np.bool_)
            self._free[list(ending)] = False
        self._check_budget()

    def mask(self) -> NDArray[np.bool_] | None:
        if self._forced:
            only = np.zeros(self._vocab_size, np.bool_)
            only[self._forced[-1]] = True
            return only
        if self._open:
            return self._free
        return None if self._answer is None else self._answer.mask()

    def advance(self, token: int) -> None:
        if self._forced:
            self._forced.pop()
            if token == self._end_tag:
                self._open = False
            return
        if not self._open:
            if self._answer is not None:
                self._answer.advance(token)
            return
        self._used += 1
        if token == self._end_tag:
            self._open = False
            return
        self._tail = _unfinished(self._tail + self._token_bytes(token))
        self._check_budget()

    def _check_budget(self) -> None:
        if self._budget is not None and self._used >= self._budget and not self._tail:
            self._forced = self._closing[::-1]


def _unfinished(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a UTF-8 character and do not complete it."""
    for size in range(1, min(4, len(data) + 1)):
        lead = data[-size]
        if lead & 0xC0 != 0x80:
            wanted = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
            return data[-size:] if wanted > size else b""
    return b""
