"""What a hit is: single cases, among them bugs of other engines (cases D02, D03, D05, D07, D14)."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm.cache import Match, TokenKey


def seq(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def test_nothing_is_cached_at_first(make_engine) -> None:
    engine = make_engine()
    assert engine.cache.match(seq(0, 9)) == Match(0, 0)
    lease = engine.cache.acquire(seq(0, 9))
    assert (lease.length, lease.matched, lease.blocks, lease.snapshot) == (0, 0, (), None)
    engine.cache.release(lease)
    engine.cache.release(lease)
    engine.cache.check()


def test_a_prompt_leaves_a_cached_path_inside_a_block(make_engine) -> None:
    """D02: a shared beginning shorter than a block, or not a multiple of one, is reused to the token."""
    engine = make_engine(block=64)
    shared = seq(0, 480)
    tails = [seq(1000 * i, 200) for i in range(1, 6)]
    prefilled = [engine.turn(shared + tail) for tail in tails]
    assert prefilled == [680, 680, 200, 200, 200]  # the second one finds where they part, the others use it


def test_shared_beginning_shorter_than_a_block(make_engine) -> None:
    engine = make_engine(block=528)
    assert [engine.turn(seq(0, 480) + seq(1000 * i, 20)) for i in range(1, 4)] == [500, 500, 20]


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_same_prompt_again_at_a_block_boundary(make_engine, blocks, extra) -> None:
    """D03: exactly k blocks, one token less and one more; one token is always computed."""
    engine = make_engine(block=64)
    prompt = seq(0, blocks * 64 + extra)
    assert engine.turn(prompt) == len(prompt)
    assert engine.turn(prompt) == 1
    assert engine.turn((*prompt, 7)) == 2


def test_chat_turns_reuse_all_but_the_generation_prompt(make_engine) -> None:
    engine = make_engine(block=64)
    prompt = seq(0, 700)
    assert engine.turn(prompt, stable=[697]) == 700
    for turn in range(1, 8):
        longer = prompt[:-3] + seq(1000 * turn, 150)
        assert engine.turn(longer, stable=[len(longer) - 3]) == 153 - 3
        prompt = longer
    assert engine.executor.published - len(engine.executor.snapshots) < 40  # each block once, plus partial ones


def test_answers_are_reused_when_the_template_repeats_them(make_engine) -> None:
    engine = make_engine(block=64)
    prompt, answer = seq(0, 100), seq(500, 50)
    engine.turn(prompt, answer=answer, stable=[100])
    assert engine.turn(prompt + answer + seq(800, 10)) == 10
    engine = make_engine(block=64)
    engine.turn(prompt, answer=answer, stable=[97])
    assert engine.turn(prompt + answer + seq(800, 10)) == 63


def test_going_back_to_an_earlier_branch(make_engine) -> None:
    """D14: A, then B, then again from A with another message: A's state, not B's; then back to B."""
    engine = make_engine(block=64)
    a = seq(0, 300)
    b = a + seq(1000, 90)
    engine.turn(a)
    engine.turn(b)
    other = a + seq(2000, 40)
    assert engine.turn(other) == 41
    assert engine.turn(b + seq(3000, 5)) == 6


def test_the_restorable_point_moves_on_in_a_long_tool_loop(make_engine) -> None:
    """D14: fifty round trips under a snapshot budget of three: each prefills only what is new."""
    engine = make_engine(block=64, snapshots=3)
    prompt = seq(0, 1000)
    engine.turn(prompt, stable=[997])
    for turn in range(1, 51):
        longer = prompt[:-3] + seq(1000 * turn, 103)
        assert engine.turn(longer, stable=[len(longer) - 3]) == 103
        prompt = longer


def test_an_edit_deep_in_the_history(make_engine) -> None:
    engine = make_engine(block=64)
    prompt = seq(0, 5000)
    engine.turn(prompt, every=1024)
    edited = prompt[:3000] + seq(10000, 2000)
    assert engine.turn(edited, every=1024) == 5000 - 2048


def test_a_request_as_big_as_the_budget_and_bigger(make_engine) -> None:
    """D05: 96 % and 100 % of the pool are kept; more than that is refused at once, evicting nothing."""
    engine = make_engine(block=64, blocks=25)
    engine.turn(seq(0, 24 * 64 + 1))
    assert engine.turn(seq(0, 24 * 64 + 1)) == 1
    engine.turn(seq(5000, 25 * 64))
    assert engine.turn(seq(5000, 25 * 64)) == 1
    before = engine.cache.stats()
    assert engine.turn(seq(9000, 25 * 64 + 2)) == 25 * 64 + 2
    after = engine.cache.stats()
    assert after.refused == before.refused + 1
    assert (after.blocks, after.evicted_blocks) == (before.blocks, before.evicted_blocks)
    assert engine.turn(seq(5000, 25 * 64)) == 1


def test_points_before_the_one_that_does_not_fit_are_kept(make_engine) -> None:
    engine = make_engine(block=64, blocks=25)
    prompt = seq(0, 3000)
    engine.turn(prompt, every=640)
    assert engine.turn(prompt) == 3000 - 1280


@pytest.mark.parametrize("aborted_after", range(5))
def test_stopped_in_the_middle_of_prefill(make_engine, aborted_after) -> None:
    """D07: what was stored by then is true, and another tail after it is right."""
    engine = make_engine(block=64)
    prompt = seq(0, 4000)
    live = engine.start(prompt)
    live.restore(every=1000)
    done = 0
    for _ in range(aborted_after):
        done = live.points[0].offset
        assert live.step()
    live.end()
    engine.cache.check()
    other = prompt[:3900] + seq(9000, 50)
    assert engine.turn(other) == len(other) - min(done, 3900) if done < 3999 else 3000


def test_two_sequences_store_the_same_path_at_once(make_engine) -> None:
    engine = make_engine(block=64)
    prompt = seq(0, 1000)
    first, second = engine.start(prompt), engine.start(prompt)
    for live in (first, second):
        live.restore()
    assert first.step()
    published = engine.executor.published
    assert second.step()
    assert engine.executor.published == published
    first.end()
    second.end()
    assert engine.turn(prompt) == 1


def test_a_longer_block_takes_the_place_of_a_partial_one_that_is_about_to_be_restored(make_engine) -> None:
    engine = make_engine(block=64)
    engine.turn(seq(0, 100), stable=[100])
    waiting = engine.start(seq(0, 120))
    other = engine.start(seq(0, 110))
    other.restore()
    while other.step():
        pass
    other.end()
    waiting.restore()  # checks the tokens
    assert waiting.lease.length == 99
    waiting.end()


def test_salts_never_share(make_engine) -> None:
    engine = make_engine()
    prompt = seq(0, 50)
    engine.turn(prompt, salt="tenant")
    assert engine.cache.match(prompt) == Match(0, 0)
    assert engine.cache.match(prompt, salt="another") == Match(0, 0)
    assert engine.turn(prompt) == 50
    assert engine.turn(prompt, salt="tenant") == 1


def test_limit(make_engine) -> None:
    engine = make_engine()
    engine.turn(seq(0, 30), every=10)
    assert engine.cache.match(seq(0, 30)) == Match(29, 29)
    assert engine.cache.match(seq(0, 30), limit=28) == Match(20, 28)
    assert engine.cache.match(seq(0, 30), limit=0) == Match(0, 0)
    assert engine.cache.match(seq(0, 5)) == Match(0, 5)


def test_thousands_of_prompts_part_at_one_point(make_engine) -> None:
    """Siblings are found by bisection: this would take minutes if each look-up compared all of them."""
    engine = make_engine(block=64, blocks=10**6, snapshots=10**6)
    shared = seq(0, 100)
    for i in range(3000):
        live = engine.start((*shared, 10_000 + 7 * i % 3000, 5, i))
        live.restore()
        while live.step():
            pass
        live.end()
    engine.cache.check()
    assert engine.cache.match((*shared, 10_000 + 7 * 1234 % 3000, 5, 1234)).length == 102
    assert engine.cache.match((*shared, 9_999, 5, 1)) == Match(100, 100)


def test_a_prefix_shared_by_siblings_outlives_the_one_that_brought_it(make_engine) -> None:
    engine = make_engine(block=64, blocks=2)
    shared = seq(0, 40)
    engine.turn((*shared, *seq(100, 10)))
    engine.turn((*shared, *seq(200, 10)), every=0)  # leaves a snapshot at 40, carried by the first one's block
    assert engine.turn((*shared, *seq(300, 10))) == 10
    assert engine.turn((*shared, *seq(400, 10))) == 10
    assert engine.cache.stats().evicted_blocks == 2


def test_wrong_use_is_refused(make_engine) -> None:
    engine = make_engine()
    cache, prompt = engine.cache, seq(0, 20)
    lease = cache.acquire(prompt)
    with pytest.raises(ValueError, match="end 21 of 20"):
        cache.store(lease, prompt, 21, slot=0, snapshot=None)
    with pytest.raises(ValueError, match="do not continue"):
        cache.store(lease, (1, *prompt[1:]), 5, slot=0, snapshot=None)
    cache.release(lease)
    with pytest.raises(ValueError, match="released"):
        cache.store(lease, prompt, 5, slot=0, snapshot=None)
    engine.turn(prompt)
    lease = cache.acquire(prompt)
    cache.release(lease)
    with pytest.raises(ValueError, match="no longer holds"):
        _ = lease.blocks
    cache.check()


def test_budget_of_zero_keeps_nothing(make_engine) -> None:
    for budgets in ({"blocks": 0}, {"snapshots": 0}):
        engine = make_engine(**budgets)
        assert [engine.turn(seq(0, 20)) for _ in range(2)] == [20, 20]
        assert engine.cache.stats().blocks == 0


def test_stats_count(make_engine) -> None:
    engine = make_engine(block=4)
    for _ in range(3):
        engine.turn(seq(0, 20))
    stats = engine.cache.stats()
    assert (stats.lookups, stats.hits, stats.misses, stats.restored_tokens) == (3, 2, 1, 38)
    assert (stats.blocks, stats.snapshots, stats.block_bytes, stats.snapshot_bytes) == (5, 1, 50, 100)
    engine.cache.clear()
    assert engine.cache.stats().blocks == 0


def test_clear_keeps_what_is_held(make_engine) -> None:
    engine = make_engine(block=4)
    engine.turn(seq(0, 20))
    engine.turn(seq(50, 20))
    live = engine.start(seq(0, 30))
    engine.cache.clear()
    assert (engine.cache.stats().blocks, engine.cache.stats().snapshots) == (5, 1)
    live.restore()
    live.end()
    engine.cache.clear()
    assert not engine.executor.blocks
    assert not engine.executor.snapshots


def test_tokens_come_as_any_sequence(make_engine) -> None:
    engine = make_engine()
    prompt = seq(0, 20)
    engine.turn(prompt)
    for tokens in (prompt, list(prompt), np.array(prompt), np.array(prompt, np.int32), TokenKey(prompt)):
        assert engine.cache.match(tokens).length == 19
