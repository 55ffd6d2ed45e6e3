"""The scheduler's policy, without a model or threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.cache import TokenKey
from edgellm.decode.params import SamplingParams
from edgellm.errors import QueueFullError
from edgellm.runtime.generation import Channel
from edgellm.runtime.scheduler import Scheduler
from edgellm.runtime.sequence import Phase, Sequence
from edgellm.runtime.types import CacheParams, Request
from edgellm.text.tokenizer import Tokenizer

Make = Callable[..., Sequence]


@pytest.fixture(scope="module")
def make(tokenizer: Tokenizer) -> Make:
    """Sequences numbered in the order they are made; keywords of `Request`."""
    numbers = iter(range(10**9))

    def build(prompt: Any = (1, 2, 3), **fields: Any) -> Sequence:
        request = Request(id="r", prompt=tuple(prompt), sampling=SamplingParams(), **fields)
        key, order = TokenKey(request.prompt), next(numbers)
        return Sequence(request, key, Channel(), tokenizer, order=order, now=0.0, context=1000, eos=())

    return build


def finish(scheduler: Scheduler, sequence: Sequence) -> None:
    sequence.length = len(sequence.key)
    scheduler.leave(sequence)


def test_priority_then_order(make: Make) -> None:
    scheduler = Scheduler(1, 10)
    low, first, second, high = make(priority=-1), make(), make(), make(priority=5)
    for sequence in (low, second, first, high):
        scheduler.enqueue(sequence)
    admitted = []
    while scheduler.queued:
        (sequence,) = scheduler.admit()
        assert scheduler.admit() == []
        admitted.append(sequence)
        finish(scheduler, sequence)
    assert admitted == [high, first, second, low]


def test_prefill_goes_by_priority_too(make: Make) -> None:
    scheduler = Scheduler(3, 10)
    first, second, high = make(), make(), make(priority=1)
    for sequence in (first, second):
        scheduler.enqueue(sequence)
    scheduler.admit()
    assert scheduler.to_prefill() is first
    scheduler.enqueue(high)
    scheduler.admit()
    assert scheduler.to_prefill() is high
    high.phase = Phase.DECODE
    assert scheduler.to_prefill() is first
    assert scheduler.to_decode() == [high]


def test_the_queue_is_bounded(make: Make) -> None:
    scheduler = Scheduler(2, 3)
    for _ in range(5):  # two of them will have a slot at once
        scheduler.enqueue(make())
    with pytest.raises(QueueFullError):
        scheduler.enqueue(make())
    scheduler.admit()
    with pytest.raises(QueueFullError):
        scheduler.enqueue(make())


def test_a_conversation_returns_to_its_slot(make: Make) -> None:
    scheduler = Scheduler(3, 10)
    sequences = [make(range(start, start + 50)) for start in (0, 100, 200)]
    for sequence in sequences:
        scheduler.enqueue(sequence)
    scheduler.admit()
    slots = [sequence.slot for sequence in sequences]
    assert sorted(slots) == [0, 1, 2]
    for sequence in sequences:
        finish(scheduler, sequence)
    for index in (1, 2, 0):
        again = make((*range(index * 100, index * 100 + 40), 7, 7))
        scheduler.enqueue(again)
        assert scheduler.admit() == [again]
        assert again.slot == slots[index]
        finish(scheduler, again)


def test_a_new_conversation_takes_the_slot_left_longest_ago(make: Make) -> None:
    scheduler = Scheduler(3, 10)
    for start in (0, 100, 200):
        scheduler.enqueue(make(range(start, start + 50)))
    running = scheduler.admit()
    for index in (2, 0, 1):
        finish(scheduler, running[index])
    fresh, other_tenant = make((999,)), make(range(100, 150), cache=CacheParams(salt="x"))
    scheduler.enqueue(fresh)
    scheduler.enqueue(other_tenant)
    scheduler.admit()
    assert fresh.slot == running[2].slot
    assert other_tenant.slot == running[0].slot  # what another tenant left is nothing to it


def test_deadlines_and_cancellation(make: Make) -> None:
    scheduler = Scheduler(1, 10)
    running, waiting, late, forever = make(deadline_s=9.0), make(), make(deadline_s=3.0), make()
    for sequence in (running, waiting, late, forever):
        scheduler.enqueue(sequence)
    scheduler.admit()
    assert scheduler.ended(2.9, set()) == ([], [])
    assert scheduler.ended(3.0, {waiting}) == ([waiting], [late])
    assert scheduler.ended(3.0, set()) == ([], [])
    assert scheduler.queued == 1
    assert scheduler.ended(9.0, {running}) == ([running], [])
    assert scheduler.running == 1  # it keeps its slot until it leaves
    finish(scheduler, running)
    assert scheduler.admit() == [forever]


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["enqueue", "admit", "leave", "cancel", "tick"]), st.integers(0, 5)), max_size=60
    ),
    slots=st.integers(1, 3),
    bound=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_everyone_leaves_once(make: Make, moves: list[tuple[str, int]], slots: int, bound: int) -> None:
    scheduler, now = Scheduler(slots, bound), 0.0
    alive: set[Sequence] = set()
    for move, number in moves:
        running = [sequence for sequence in scheduler.everyone() if sequence.slot >= 0]
        if move == "enqueue":
            sequence = make(priority=number % 3, deadline_s=float(number * 4) or None)
            try:
                scheduler.enqueue(sequence)
                alive.add(sequence)
            except QueueFullError:
                assert scheduler.queued >= bound
        elif move == "admit":
            scheduler.admit()
        elif move == "leave" and running:
            finish(scheduler, running[number % len(running)])
            alive.discard(running[number % len(running)])
        elif move in ("cancel", "tick"):
            now += number if move == "tick" else 0
            victims = set(sorted(alive, key=lambda s: s.order)[:number]) if move == "cancel" else set()
            stopped, late = scheduler.ended(now, victims)
            assert set(stopped) == victims
            assert all(sequence.deadline is not None and sequence.deadline <= now for sequence in late)
            for sequence in (*stopped, *late):
                if sequence.slot >= 0:
                    finish(scheduler, sequence)
                alive.discard(sequence)
        assert set(scheduler.everyone()) == alive
        held = [sequence.slot for sequence in scheduler.everyone() if sequence.slot >= 0]
        assert len(held) == len(set(held)) == scheduler.running == slots - scheduler.free_slots
        assert all(s.deadline is None or s.deadline > now or move != "tick" for s in scheduler.everyone())
