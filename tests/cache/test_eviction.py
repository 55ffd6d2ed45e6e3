"""What goes first, and what never goes."""

from __future__ import annotations

import pytest

from edgellm.cache.eviction import superseded


def seq(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def kept(engine, *prompts) -> list[bool]:
    return [engine.cache.match(prompt).length >= len(prompt) - 1 for prompt in prompts]


A, B, C, D = (seq(1000 * i, 16) for i in range(1, 5))


def test_least_recently_used_blocks_go_first(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    for prompt in (A, B, C, A, D):
        engine.turn(prompt)
    assert kept(engine, A, B, C, D) == [True, False, True, True]


def test_least_recently_used_snapshots_go_first(make_engine) -> None:
    engine = make_engine(block=4, snapshots=3)
    for prompt in (A, B, C, A, D):
        engine.turn(prompt)
    assert kept(engine, A, B, C, D) == [True, False, True, True]


@pytest.mark.parametrize("budget", [{"blocks": 12}, {"snapshots": 3}])
def test_priority_comes_before_recency(make_engine, budget) -> None:
    engine = make_engine(block=4, **budget)
    engine.turn(A, priority=80)
    engine.turn(B, priority=10)
    engine.turn(C)
    engine.turn(D)
    assert kept(engine, A, B, C, D) == [True, False, True, True]
    engine.turn(B)
    assert kept(engine, A, B, C, D) == [True, True, False, True]


@pytest.mark.parametrize("budget", [{"blocks": 12}, {"snapshots": 3}])
def test_priority_reverts_to_the_default(make_engine, clock, budget) -> None:
    engine = make_engine(block=4, **budget)
    engine.turn(A, priority=80, duration_s=10)
    engine.turn(B, priority=0, duration_s=10)
    engine.turn(C)
    clock.now = 10.0
    engine.turn(D)  # all three are at the default now: the oldest goes
    assert kept(engine, A, B, C, D) == [False, True, True, True]


def test_the_highest_priority_still_gives_way_when_all_have_it(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    for prompt in (A, B, C):
        engine.turn(prompt, priority=100)
    engine.turn(D, priority=0)
    assert kept(engine, A, B, C, D) == [False, True, True, True]


def test_another_request_never_lowers_a_priority(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    engine.turn(A, priority=80)
    engine.turn(A, priority=5)
    for prompt in (B, C, D):
        engine.turn(prompt)
    assert kept(engine, A, B, C, D) == [True, False, True, True]


def test_retain_sets_a_token_range(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    for prompt in (A, B, C):
        engine.turn(prompt, every=8)
    assert engine.cache.retain(A, start=0, end=8, priority=90) == 3  # two blocks and the snapshot at 8
    engine.turn(D)
    assert engine.cache.match(A).length == engine.cache.match(A).matched == 8  # the rest of A went, and half of B
    assert engine.cache.match(B).length == 8
    assert kept(engine, C, D) == [True, True]
    assert engine.cache.retain(seq(7, 3), priority=90) == 0
    with pytest.raises(ValueError, match="priority 101"):
        engine.cache.retain(A, priority=101)


def test_retain_lowers_too(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    for prompt in (A, B, C):
        engine.turn(prompt, priority=50)
    engine.cache.retain(C, priority=0)
    engine.turn(D)
    assert kept(engine, A, B, C, D) == [True, True, False, True]


def test_blocks_that_nothing_can_restore_go_before_all_others(make_engine) -> None:
    engine = make_engine(block=4, blocks=12)
    engine.turn(A, priority=0)
    live = engine.start(B, priority=100)
    live.restore()
    live.store(B, 16, None)  # blocks without a snapshot
    live.end()
    engine.turn(C)
    engine.turn(D)
    assert kept(engine, A, B, C, D) == [True, False, True, True]


def test_a_path_goes_from_its_end(make_engine) -> None:
    engine = make_engine(block=4, blocks=8)
    engine.turn(seq(0, 28), every=8)
    engine.turn(seq(500, 12))
    assert engine.cache.match(seq(0, 28)).length == 16  # 5 of 7 blocks are left, the snapshot at 16 is whole
    assert engine.cache.match(seq(0, 28)).matched == 20


def test_what_a_live_sequence_holds_never_goes(make_engine) -> None:
    engine = make_engine(block=4, blocks=8, snapshots=2)
    engine.turn(A)
    live = engine.start((*A, 1, 2))
    for prompt in (B, C, D):
        engine.turn(prompt)
    live.restore()
    assert live.lease.length == 15
    live.end()


def test_superseded_snapshots_go_before_branching_ones(make_engine) -> None:
    engine = make_engine(block=4, snapshots=4)
    shared = seq(0, 10)
    engine.turn(shared + A)
    engine.turn(shared + B)  # snapshot where they part
    engine.turn(shared + B + C)  # B's own end is now superseded
    assert [s.offset for s in engine.cache.pool.snapshots if superseded(s)] == [25]
    engine.turn(D)
    assert kept(engine, shared + A, shared + B + C, D) == [True, True, True]
    assert engine.cache.match((*shared, 7)).length == 10
    assert engine.cache.match(shared + B).length == 10


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([(8, 4), (8, 8)], {4}),  # one path, in and across blocks
        ([(8, 5), (8, 6)], {5}),
        ([(8, 4)], set()),
        ([(8, 8)], set()),
        ([(12, 4)], set()),
    ],
)
def test_superseded_on_one_path(make_engine, paths, expected) -> None:
    engine = make_engine(block=4)
    for length, offset in paths:
        live = engine.start(seq(0, length + 1))
        live.restore()
        live.store(live.prompt, offset, "stable")
        live.store(live.prompt, length, None)
        live.end()
    assert {s.offset for s in engine.cache.pool.snapshots if superseded(s)} == expected


def test_three_conversations_share_a_small_snapshot_budget(make_engine) -> None:
    """Each keeps its newest point and all keep the shared one, whatever the order of turns."""
    engine = make_engine(block=4, snapshots=4)
    shared = seq(0, 10)
    prompts = [shared + seq(1000 * i, 20) for i in range(1, 4)]
    for prompt in prompts:
        engine.turn(prompt, stable=[len(prompt) - 3])
    for turn in range(20):
        for index in (0, 1, 2, 2, 0):
            longer = prompts[index][:-3] + seq(10_000 + 100 * turn + 5 * index, 10)
            assert engine.turn(longer, stable=[len(longer) - 3]) == 10
            prompts[index] = longer
    assert engine.cache.match((*shared, 7)).length == 10


def test_a_point_just_taken_in_another_prompts_block_survives_the_room_made_for_the_rest(make_engine) -> None:
    """The shared snapshot is carried by the first prompt's block until the second one has stored its own."""
    engine = make_engine(block=4, blocks=3, snapshots=3)
    engine.turn((1, 2, 3, 4))
    live = engine.start((1, 2, 7, 8, 9, 10, 11, 12, 13))
    live.restore()
    assert [tuple(point) for point in live.points] == [(2, "shared"), (8, "stable")]
    while live.step():
        pass
    live.end()
    assert engine.cache.match((1, 2, 0)).length == 2
