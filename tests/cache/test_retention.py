"""Retention by token ranges: what is valid, what blocks and snapshots get, how much may be kept above others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cache import RetentionPlan, TokenRange, check_ranges, default_ranges, plan_snapshots
from edgellm.cache.retention import DECODE_PRIORITY, HEAD_PRIORITY, RangeFields, check_duration, check_priority
from edgellm.errors import RequestError

PATH = "kv_retention.token_range_retention_configs"
A, B, C = (tuple(range(1000 * i, 1000 * i + 16)) for i in range(1, 4))


def retained(engine, tokens) -> list[tuple[int, int]]:
    """(end, priority) of the blocks on the path of `tokens`."""
    node, found = engine.cache.pool.roots[bytes(16)], []
    data = b"".join(token.to_bytes(4, "big") for token in tokens)
    while node is not None:
        part = data[4 * node.end : 4 * (node.end + engine.cache.pool.block_tokens)]
        node = (node.covering(part) or node.shorter(part)) if part else None
        if node is not None:
            found.append((node.end, node.retention.at(engine.cache._clock())))
    return found


def snapshots(engine) -> dict[int, int]:
    now = engine.cache._clock()
    return {snapshot.offset: snapshot.retention.at(now) for snapshot in engine.cache.pool.snapshots}


@pytest.mark.parametrize(
    ("ranges", "at", "words"),
    [
        ([(-1, 3, 50)], "[0].token_start", "at least 0"),
        ([(0, -3, 50)], "[0].token_end", "at least 0"),
        ([(3, 3, 50)], "[0].token_end", "above token_start 3"),
        ([(0, 3, 101)], "[0].priority", "0 to 100"),
        ([(0, 3, -1)], "[0].priority", "at least 0"),
        ([(0, 3, True)], "[0].priority", "an integer"),
        ([(0, 3, 50, 0.0)], "[0].duration_ms", "above 0"),
        ([(0, 3, 50, float("nan"))], "[0].duration_ms", "finite"),
        ([(0, 3, 50, float("inf"))], "[0].duration_ms", "finite"),
        ([(0, 5, 50), (4, 8, 50)], "[1].token_start", "overlaps"),
        ([(4, 8, 50), (0, 5, 50)], "[0].token_start", "overlaps"),
        ([(0, 5, 50), (0, 5, 50)], "[1].token_start", "overlaps"),
        ([(0, None, 50), (4, 8, 50)], "[0].token_end", "is required"),
        ([(4, None, 50), (4, None, 50)], "[0].token_end", "is required"),
    ],
)
def test_invalid_ranges_are_named(ranges, at, words) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_ranges([TokenRange(*item) for item in ranges], PATH)
    assert caught.value.param == PATH + at
    assert str(caught.value).startswith(PATH + at)
    with pytest.raises(RequestError) as caught:
        check_ranges([TokenRange(*item) for item in ranges], "cache.ranges", RangeFields())
    assert caught.value.param.startswith("cache.ranges[")
    assert "token_" not in str(caught.value)


def test_ranges_are_put_in_order() -> None:
    last, first = TokenRange(8, None, 0, 0.5), TokenRange(0, 8, 100)
    assert check_ranges([last, first], PATH) == (first, last)
    assert check_ranges((), PATH) == ()
    for value in (None, 0, 100):
        check_priority(value, "x")
    with pytest.raises(RequestError, match="x must be"):
        check_priority(101, "x")
    with pytest.raises(RequestError, match="y must be"):
        check_duration(-1.0, "y")


def test_the_head_is_kept_longest_and_answers_least() -> None:
    (head,) = default_ranges(700)
    assert (head.start, head.end, head.priority) == (0, 700, HEAD_PRIORITY)
    assert HEAD_PRIORITY > 35 > DECODE_PRIORITY
    assert default_ranges(0) == ()


@st.composite
def plans(draw) -> RetentionPlan:
    cuts = sorted(draw(st.sets(st.integers(0, 30), max_size=8)))
    ends = [*cuts[1:], None]
    ranges = [
        TokenRange(start, end, draw(st.integers(0, 100)), draw(st.none() | st.integers(1, 9)))
        for start, end in zip(cuts, ends, strict=False)
        if draw(st.booleans())
    ]
    return RetentionPlan(draw(st.integers(0, 30)), tuple(ranges), draw(st.integers(0, 100)))


@given(plan=plans(), start=st.integers(0, 35), size=st.integers(1, 12))
def test_a_span_gets_the_highest_of_its_tokens(plan, start, size) -> None:
    def of(token: int) -> int:
        if token >= plan.prompt_length:
            return plan.decode_priority
        holds = [item for item in plan.ranges if item.start <= token and (item.end is None or token < item.end)]
        return holds[0].priority if holds else 35

    got = plan.over(start, start + size, 100.0)
    expected = [of(token) for token in range(start, start + size)]
    assert got.at(100.0) == max(expected)
    if size == 1 and start < plan.prompt_length and expected[0] != 35:
        (item,) = [item for item in plan.ranges if item.start <= start and (item.end is None or start < item.end)]
        assert got.expires == (None if item.duration_s is None else 100.0 + item.duration_s)


def test_each_block_and_snapshot_by_its_position(make_engine, clock) -> None:
    engine = make_engine(block=4)
    ranges = (TokenRange(0, 6, 90, 10.0), TokenRange(8, 12, 10))
    engine.turn(A, answer=range(8), every=4, min_gap=1, ranges=ranges, decode_priority=20)
    whole = (*A, *range(8))
    assert retained(engine, whole) == [(4, 90), (8, 90), (12, 10), (16, 35), (20, 20), (24, 20)]
    assert snapshots(engine) == {4: 90, 8: 35, 12: 10, 15: 35, 24: 35}
    stats = engine.cache.stats()
    assert stats.block_bytes_by_priority == {"10": 10, "20": 20, "35": 10, "90": 20}
    assert stats.snapshot_bytes_by_priority == {"10": 100, "35": 300, "90": 100}
    assert sum(stats.block_bytes_by_priority.values()) == stats.block_bytes
    clock.now = 10.0
    assert retained(engine, whole)[:2] == [(4, 35), (8, 35)]
    assert engine.cache.stats().block_bytes_by_priority == {"10": 10, "20": 20, "35": 30}


def test_another_request_raises_and_never_lowers(make_engine) -> None:
    engine = make_engine(block=4)
    engine.turn(A, answer=range(4), decode_priority=30)
    engine.turn((*A, *range(4), *B), ranges=(TokenRange(0, 4, 60), TokenRange(4, 8, 5)))
    assert retained(engine, (*A, *range(4))) == [(4, 60), (8, 35), (12, 35), (16, 35), (20, 35)]
    engine.turn((*A, *C), ranges=(TokenRange(0, None, 3),))
    assert retained(engine, A) == [(4, 60), (8, 35), (12, 35), (16, 35)]


def test_only_a_share_is_kept_above_the_default(make_engine, clock) -> None:
    engine = make_engine(block=4, blocks=12, snapshots=4, share=0.5)
    engine.turn(A, ranges=(TokenRange(0, None, 90, 10.0),))
    engine.turn(B, ranges=(TokenRange(0, None, 90),))
    assert [priority for _, priority in retained(engine, A)] == [90, 90, 90, 90]
    assert [priority for _, priority in retained(engine, B)] == [90, 90, 35, 35]
    engine.turn(C, ranges=(TokenRange(0, None, 90),))
    assert [priority for _, priority in retained(engine, C)] == [35, 35, 35, 35]
    assert engine.cache.stats().snapshot_bytes_by_priority == {"35": 100, "90": 200}
    assert engine.cache.stats().clipped == 2 + 4 + 1
    assert engine.cache.retain(C, priority=90) == 5
    assert [priority for _, priority in retained(engine, C)] == [35, 35, 35, 35]
    engine.turn((*A, 1, 2, 3), ranges=(TokenRange(0, None, 95, 10.0),))  # what is above the default may go higher
    assert [priority for _, priority in retained(engine, A)] == [95, 95, 95, 95]
    clock.now = 10.0  # A's time is over: there is room again
    engine.turn((*C, 1, 2, 3), ranges=(TokenRange(0, None, 90),))
    assert [priority for _, priority in retained(engine, C)] == [90, 90, 90, 90]
    engine.cache.check()


def test_no_share_no_priority(make_engine) -> None:
    engine = make_engine(block=4, share=0.0)
    engine.turn(A, priority=90)
    assert engine.cache.stats().block_bytes_by_priority == {"35": 40}
    engine.turn(B, priority=20)
    assert engine.cache.stats().block_bytes_by_priority == {"20": 40, "35": 40}


@pytest.mark.parametrize(
    ("kept", "restored", "matched", "expected"),
    [
        ((300,), 0, 0, [(300, "shared"), (900, "stable")]),
        ((300,), 0, 500, [(300, "shared"), (500, "shared"), (900, "stable")]),
        ((300,), 0, 320, [(300, "shared"), (900, "stable")]),  # the two are too near to each other
        ((300,), 280, 280, [(900, "stable")]),
        ((900, 1000, 2000), 0, 0, [(900, "stable")]),
    ],
)
def test_what_is_kept_can_be_restored(kept, restored, matched, expected) -> None:
    points = plan_snapshots(1000, restored=restored, matched=matched, stable_lengths=[900], kept_lengths=kept, every=0)
    assert list(points) == expected


def test_where_kept_ranges_end() -> None:
    plan = RetentionPlan(100, (TokenRange(0, 10, 90), TokenRange(10, 20, 35), TokenRange(20, 100, 90)))
    assert plan.kept_lengths == (10,)


def test_a_kept_head_outlives_its_conversation(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    live = engine.start((*A[:8], *B), ranges=(TokenRange(0, 8, 90),))
    live.restore()
    live.store(live.prompt, 8, "shared")
    live.store(live.prompt, 23, "stable")
    live.end()
    engine.turn(C + B)
    engine.turn(B + C)
    assert engine.cache.match((*A[:8], 5)).length == 8
    engine.cache.check()


def test_a_state_behind_an_answer_is_worth_the_prompt_before_it() -> None:
    plan = RetentionPlan(10, (TokenRange(0, 5, 90), TokenRange(5, None, 50)), decode_priority=20)
    assert [plan.state_at(offset, 0.0).priority for offset in (5, 6, 10, 11, 30)] == [90, 50, 50, 50, 50]
    assert RetentionPlan(10, (TokenRange(0, None, 10),), 20).state_at(30, 0.0).priority == 20
    assert RetentionPlan(decode_priority=20).state_at(30, 0.0).priority == 20


@pytest.mark.parametrize("snapshots", [6, 9, 20])
def test_low_priority_of_answers_costs_conversations_nothing(make_engine, snapshots) -> None:
    """Their newest points are behind answers: were those the first to go, the next turns would find older ones."""

    def prefilled(decode_priority: int) -> int:
        engine = make_engine(block=4, snapshots=snapshots)
        histories = [(*A, 100 + number) for number in range(4)]
        total = 0
        for turn in range(32):
            number = (turn * turn + turn // 3) % 4
            prompt, answer = (*histories[number], *range(turn, turn + 9)), tuple(range(turn, turn + 5))
            total += engine.turn(
                prompt,
                answer=answer,
                stable=[len(prompt)],
                ranges=(TokenRange(0, 16, 90),),
                decode_priority=decode_priority,
            )
            histories[number] = prompt + answer
        return total

    assert prefilled(30) == prefilled(35)


def test_what_is_cached_already_is_raised_alone(make_engine) -> None:
    engine = make_engine(block=4)
    engine.turn(A, every=8)
    engine.cache.keep(A[:9], RetentionPlan(9, (TokenRange(0, 8, 90),)), namespace=bytes(16))
    assert retained(engine, A) == [(4, 90), (8, 90), (12, 35), (15, 35)]
    assert snapshots(engine) == {8: 90, 15: 35}
    engine.cache.keep(B, RetentionPlan(16, (TokenRange(0, 8, 90),)), namespace=bytes(16))
    engine.cache.check()


def test_hit_rate_counts_tokens(make_engine) -> None:
    engine = make_engine(block=4)
    assert engine.cache.stats().hit_rate is None
    engine.turn(A)
    engine.turn((*A, *B))
    stats = engine.cache.stats()
    assert (stats.looked_up_tokens, stats.restored_tokens) == (15 + 31, 15)
    assert stats.hit_rate == 15 / 46
