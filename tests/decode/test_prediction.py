"""A prediction is followed, left and found again; whatever it says, its drafts are its own tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgellm.decode.prediction import Prediction, PredictionReader

TEXT = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)


def reader(*tokens: int) -> PredictionReader:
    return PredictionReader(Prediction(tokens or TEXT))


def test_an_answer_that_repeats_the_text_is_drafted_from_its_start() -> None:
    followed = reader()
    assert followed.draft([], 15) == (5, 6, 7, 8)
    assert followed.draft([5], 15) == (6, 7, 8, 9)
    assert followed.draft([5, 6], 2) == (7, 8)
    assert followed.draft(list(TEXT[:-2]), 15) == (15, 16)
    assert followed.draft(list(TEXT), 15) == ()


def test_drafts_grow_while_they_are_taken_whole() -> None:
    followed = reader()
    followed.judge(4, 4)
    assert followed.draft([5], 15) == TEXT[1:9]
    assert followed.draft([5], 5) == TEXT[1:6]
    followed.judge(8, 3)
    assert followed.draft([5], 15) == (6, 7, 8)
    followed.judge(3, 0)
    assert followed.draft([5], 15) == (6,)


def test_an_answer_that_leaves_the_text_is_found_again_by_three_tokens() -> None:
    followed = reader()
    assert followed.draft([5, 6, 99], 15) == ()
    assert followed.draft([5, 6, 99, 10], 15) == ()
    assert followed.draft([5, 6, 99, 10, 11], 15) == ()
    assert followed.draft([5, 6, 99, 10, 11, 12], 15) == (13, 14, 15, 16)
    assert followed.draft([5, 6, 99, 10, 11, 12, 6, 7, 8], 15) == (9, 10, 11, 12)  # back to the front


def test_of_several_places_the_next_one_counts() -> None:
    text = (1, 2, 3, 40, 1, 2, 3, 50, 1, 2, 3, 60)
    followed = reader(*text)
    assert followed.draft([1, 2, 3, 40, 9, 1, 2, 3], 1) == (50,)
    assert followed.draft([1, 2, 3, 40, 9, 1, 2, 3, 9, 1, 2, 3], 1) == (60,)
    assert followed.draft([1, 2, 3, 40, 9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3], 1) == (40,)


def test_reasoning_before_the_answer_does_no_harm() -> None:
    followed = reader()
    assert followed.draft([100, 101, 102, 103], 15) == ()
    assert followed.draft([100, 101, 102, 103, 5, 6, 7], 15) == (8, 9, 10, 11)


def test_short_texts_and_no_room() -> None:
    assert reader(5).draft([], 15) == (5,)
    assert reader(5, 6).draft([9, 5, 6], 15) == ()
    assert reader().draft([5], 0) == ()
    assert reader().draft([5], -1) == ()


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    answer=st.lists(st.integers(0, 3), max_size=80),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    limit=st.integers(-1, 20),
)
def test_drafts_are_continuations_within_the_text(
    tokens: list[int], answer: list[int], cuts: list[int], limit: int
) -> None:
    followed, end = PredictionReader(Prediction(tokens)), 0
    for cut in cuts:
        end = min(end + cut, len(answer))
        draft = followed.draft(answer[:end], limit)
        assert len(draft) <= max(limit, 0)
        run = tuple(answer[max(end - 3, 0) : end])
        if draft:  # what was said, as far as it is followed, and the draft stand in the text side by side
            whole = (*run, *draft) if end <= 3 and tuple(answer[:end]) == tuple(tokens[:end]) else draft
            assert any(tuple(tokens[at : at + len(whole)]) == whole for at in range(len(tokens)))
        followed.judge(len(draft), min(len(draft), cut))
