"""Where snapshots are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgellm.cache import keep_after_generation, plan_snapshots


def plan(prompt_len: int, **options) -> list[tuple[int, str]]:
    options = {"restored": 0, "matched": 0, "stable_lengths": [prompt_len - 3], "every": 0, "min_gap": 64} | options
    return [tuple(point) for point in plan_snapshots(prompt_len, **options)]


def test_stable_end() -> None:
    assert plan(1000) == [(997, "stable")]
    assert plan(1000, restored=997, matched=997) == []
    assert plan(1000, stable_lengths=[600, 997]) == [(600, "stable"), (997, "stable")]


def test_an_unknown_or_whole_stable_length_leaves_one_token_to_compute() -> None:
    assert plan(1000, stable_lengths=None) == [(999, "stable")]
    assert plan(1000, stable_lengths=[1000]) == [(999, "stable")]
    assert plan(1000, stable_lengths=[997, 1000]) == [(997, "stable")]
    assert plan(1000, stable_lengths=[900, 1000]) == [(900, "stable"), (999, "stable")]
    assert plan(1, stable_lengths=None) == []


def test_the_same_short_prompt_again_has_no_further_point() -> None:
    assert plan(1000, stable_lengths=None, restored=999, matched=999) == []


def test_where_a_prompt_leaves_a_cached_path() -> None:
    assert plan(1000, matched=298) == [(298, "shared"), (997, "stable")]
    assert plan(1000, matched=298, restored=298) == [(997, "stable")]
    assert plan(1000, matched=298, restored=250) == [(997, "stable")]
    assert plan(1000, matched=997) == [(997, "shared")]


def test_every_so_often() -> None:
    assert plan(2500, every=1000) == [(1000, "interval"), (2000, "interval"), (2497, "stable")]
    assert plan(2500, every=1000, restored=1000) == [(2000, "interval"), (2497, "stable")]
    assert plan(2500, every=1000, restored=1990) == [(2497, "stable")]
    assert plan(2500, every=1000, matched=1010) == [(1010, "shared"), (2000, "interval"), (2497, "stable")]


def test_after_generation() -> None:
    assert keep_after_generation(100, None)
    assert keep_after_generation(100, [97, 100])
    assert not keep_after_generation(100, [97])
    assert not keep_after_generation(100, [])


@given(
    prompt_len=st.integers(1, 3000),
    restored=st.integers(0, 3000),
    beyond=st.integers(0, 3000),
    stable=st.none() | st.lists(st.integers(0, 3100), max_size=3),
    every=st.sampled_from([0, 50, 100, 1024]),
    min_gap=st.integers(1, 200),
)
def test_points_ascend_between_what_was_restored_and_the_end(
    prompt_len, restored, beyond, stable, every, min_gap
) -> None:
    restored = min(restored, prompt_len - 1)
    matched = min(restored + beyond, prompt_len - 1)
    points = plan_snapshots(
        prompt_len, restored=restored, matched=matched, stable_lengths=stable, every=every, min_gap=min_gap
    )
    offsets = [point.offset for point in points]
    assert offsets == sorted(set(offsets))
    assert all(restored < offset < prompt_len for offset in offsets)
    assert all(length in offsets for length in stable or () if restored < length < prompt_len)
    if matched >= restored + min_gap:
        assert matched in offsets
