"""The reasoning block in front of a constrained answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgellm.decode.thinking import ThinkingConstraint

VOCAB, EOS, END, NEWLINE, BLANK, ONLY = 300, 299, 298, 10, 297, 7
CLOSING = (NEWLINE, END, BLANK)


class Only:
    """Allows `ONLY`, then EOS; keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def mask(self) -> NDArray[np.bool_]:
        mask = np.zeros(VOCAB, np.bool_)
        mask[EOS if self.told else ONLY] = True
        return mask

    def advance(self, token: int) -> None:
        self.told.append(token)


def made(answer: Only | None, budget: int | None) -> ThinkingConstraint:
    return ThinkingConstraint(
        answer,
        end_tag=END,
        closing=CLOSING,
        ending=[EOS],
        vocab_size=VOCAB,
        budget=budget,
        token_bytes=lambda token: bytes([token]) if token < 256 else b"</think>" if token == END else b"\n\n",
    )


def allowed(constraint: ThinkingConstraint) -> set[int] | None:
    mask = constraint.mask()
    return None if mask is None else set(np.nonzero(mask)[0].tolist())


def test_free_reasoning_then_the_answer() -> None:
    answer = Only()
    constraint = made(answer, None)
    for token in (65, 66, 200, 67):
        assert allowed(constraint) == set(range(VOCAB)) - {EOS}
        constraint.advance(token)
    constraint.advance(END)
    assert allowed(constraint) == {ONLY}
    constraint.advance(ONLY)
    assert allowed(constraint) == {EOS}
    assert answer.told == [ONLY]


def test_without_an_answer_to_come_the_turn_may_end_anywhere() -> None:
    constraint = made(None, 2)
    assert allowed(constraint) is None
    constraint.advance(65)
    assert allowed(constraint) is None


@given(budget=st.integers(0, 6), text=st.text(min_size=8, max_size=12), answered=st.booleans())
def test_the_budget_closes_the_block_at_a_character(budget: int, text: str, answered: bool) -> None:
    answer = Only() if answered else None
    constraint = made(answer, budget)
    said: list[int] = []
    thought = iter(text.encode())
    while True:
        may = allowed(constraint)
        if may is not None and len(may) == 1 and len(said) < 40:
            token = may.pop()
            if token == ONLY:
                break
        elif END in said:
            break
        else:
            token = next(thought)
        said.append(token)
        constraint.advance(token)
    assert tuple(said[-3:]) == CLOSING
    reasoning = said[:-3]
    assert budget <= len(reasoning) <= budget + 3
    assert bytes(reasoning).decode() is not None  # whole characters
    assert answer is None or answer.told == []


@pytest.mark.parametrize("budget", [3, None])
def test_a_block_that_closes_in_time_is_left_alone(budget: int | None) -> None:
    constraint = made(Only(), budget)
    for token in (65, 66, END):
        constraint.advance(token)
    assert allowed(constraint) == {ONLY}
