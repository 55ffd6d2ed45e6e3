"""Requests that end early or go wrong: in every phase the others are unharmed and nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.scripted import fail_at
from edgellm.errors import EngineDeadError, QueueFullError, RequestError
from edgellm.runtime.types import CacheParams

TREE = SpeculationParams()
PROMPT = tuple(range(10, 300))
LONG = SamplingParams(max_tokens=200)
Open = Callable[..., Any]


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# -- cancellation and deadlines


@pytest.mark.parametrize("shape", [None, TREE], ids=["off", "tree"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("why", ["cancel", "drop", "deadline"])
def test_end_in_each_phase(open_rig: Open, gate: Any, read_last: Any, phase: str, why: str, shape: Any) -> None:
    clock = FakeClock()
    rig = open_rig(on_call=gate, slots=1, prefill_chunk=64, speculation=shape, clock=clock)
    expected = rig.run(PROMPT, LONG, cache=CacheParams(read=False, write=False)).token_ids
    operation, number = ("verify", 3) if shape and phase == "decode" else ("advance", 8 if phase == "decode" else 3)
    held = gate.hold(operation, number)
    deadline = 5.0 if why == "deadline" else None
    running = rig.submit(PROMPT, LONG, deadline_s=None if phase == "queued" else deadline)
    queued = rig.submit(PROMPT, LONG, deadline_s=deadline if phase == "queued" else None)
    held.wait()
    if why == "deadline":
        clock.now = 5.0
    elif why == "cancel":
        (queued if phase == "queued" else running).cancel()
    elif phase == "queued":
        del queued
    else:
        del running
    gc.collect()
    held.open()
    if why != "drop":
        output = read_last(queued if phase == "queued" else running)
        assert output.finish_reason == ("deadline" if why == "deadline" else "abort")
        assert output.usage is not None
        assert output.usage.completion_tokens < 200
    if phase == "queued":
        assert sum((output.token_ids for output in running), ()) == expected
    else:
        assert sum((output.token_ids for output in queued), ()) == expected
    rig.settle()
    finished = rig.engine.stats().finished
    assert finished["deadline" if why == "deadline" else "abort"] == 1


def test_cancelling_twice_and_late_is_harmless(open_rig: Open, read_last: Any) -> None:
    rig = open_rig()
    generation = rig.submit(PROMPT)
    generation.cancel()
    generation.cancel()
    assert read_last(generation).finish_reason in ("abort", "length")
    generation.cancel()
    done = rig.submit(PROMPT)
    assert read_last(done).finish_reason == "length"
    done.cancel()
    assert list(done) == []
    rig.settle()


@given(moments=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 280)), min_size=2, max_size=5))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_abort_in_mid_prefill_then_the_same_beginning(
    open_rig: Open, gate: Any, moments: list[tuple[int, int]]
) -> None:
    """What an aborted prefill left in the cache is true: the retry says what a cold run says."""
    rig = open_rig(on_call=gate, prefill_chunk=16)
    for index, (chunk, cut) in enumerate(moments):
        retry = (*PROMPT[:cut], *range(300 + index * 20, 310 + index * 20))
        held = gate.hold("advance", chunk)
        aborted = rig.submit(PROMPT, LONG, stable_lengths=(cut,))
        held.wait()
        aborted.cancel()
        held.open()
        list(aborted)
        warm = rig.run(retry).token_ids
        assert warm == rig.run(retry, cache=CacheParams(read=False, write=False)).token_ids
        rig.settle()
    rig.engine.close()


def test_the_queue_is_bounded(open_rig: Open, gate: Any, read_all: Any) -> None:
    rig = open_rig(on_call=gate, slots=1, max_queue=2)
    held = gate.hold("advance")
    accepted = [rig.submit(PROMPT)]
    held.wait()
    accepted += [rig.submit(PROMPT), rig.submit(PROMPT)]
    with pytest.raises(QueueFullError, match="2"):
        rig.submit(PROMPT)
    accepted.pop().cancel()
    held.open()
    assert [len(read_all(generation).token_ids) for generation in accepted] == [8, 8]
    rig.settle()
    assert len(rig.run(PROMPT).token_ids) == 8


# -- faults


class Faulty:
    """Raises at the given calls of the given operations."""

    def __init__(self) -> None:
        self.left: dict[str, list[int]] = {}

    def __call__(self, operation: str, _: int) -> None:
        at = self.left.get(operation)
        if at:
            at[0] -= 1
            if at[0] == 0:
                at.pop(0)
                raise RuntimeError("the device is on fire")


@pytest.mark.parametrize("operation", ["restore", "advance", "draft", "verify", "commit", "publish", "snapshot"])
def test_one_failed_call_ends_one_request(open_rig: Open, gate: Any, read_last: Any, operation: str) -> None:
    faulty = Faulty()

    def hook(name: str, number: int) -> None:
        gate(name, number)
        faulty(name, number)

    rig = open_rig(on_call=hook, speculation=TREE, prefill_chunk=64)
    other_prompt, sampling = tuple(range(400, 500)), SamplingParams(max_tokens=60)
    expected = rig.run(other_prompt, sampling).token_ids
    held = gate.hold("advance")
    victim = rig.submit(PROMPT, LONG)
    held.wait()
    if operation == "restore":
        victim.cancel()
        held.open()
        list(victim)
        rig.settle()
        faulty.left = {operation: [1]}
        victim = rig.submit(PROMPT, LONG)
    else:
        faulty.left = {operation: [1 if operation == "snapshot" else 2]}
        held.open()
    output = read_last(victim)
    assert output.finish_reason == "error"
    assert output.error is not None
    assert "on fire" in output.error
    assert output.usage is not None
    assert rig.run(other_prompt, sampling).token_ids == expected
    rig.settle()
    stats = rig.engine.stats()
    assert stats.healthy
    assert stats.faults == 1


def test_a_failed_batch_ends_its_members_only(open_rig: Open, gate: Any, read_last: Any, read_all: Any) -> None:
    faulty = Faulty()

    def hook(name: str, number: int) -> None:
        gate(name, number)
        faulty(name, number)

    rig = open_rig(on_call=hook, slots=3, max_batch=2)
    expected = rig.run(PROMPT, SamplingParams(max_tokens=30)).token_ids
    held = gate.hold("advance")
    running = [rig.submit(PROMPT, SamplingParams(max_tokens=30)) for _ in range(3)]
    held.wait()
    faulty.left = {"advance": [12]}
    held.open()
    outputs = [list(generation) for generation in running]
    ends = [output[-1].finish_reason for output in outputs]
    assert sorted(ends) in (["error", "error", "length"], ["error", "length", "length"])
    for output in outputs:
        tokens = sum((part.token_ids for part in output), ())
        assert tokens == expected[: len(tokens)]
        assert output[-1].usage.completion_tokens == len(tokens)
    rig.settle()


def test_a_fault_while_the_answer_is_kept_does_not_spoil_it(open_rig: Open, read_last: Any) -> None:
    rig = open_rig(on_call=fail_at("snapshot", 2, RuntimeError("full")))  # the first is at the prompt's end
    output = read_last(rig.submit(PROMPT))
    assert output.finish_reason == "length"
    rig.settle()
    assert rig.engine.stats().faults == 1


def test_repeated_faults_kill_the_engine(open_rig: Open, read_last: Any, eventually: Any) -> None:
    def hook(name: str, _: int) -> None:
        if name == "advance":
            raise RuntimeError("the device is on fire")

    rig = open_rig(on_call=hook)
    for _ in range(3):
        assert read_last(rig.submit(PROMPT)).finish_reason == "error"
    eventually(lambda: not rig.engine.stats().healthy)
    with pytest.raises(EngineDeadError, match="on fire"):
        rig.submit(PROMPT)
    rig.engine.close()
    stats = rig.engine.stats()
    assert stats.error is not None
    assert stats.running == stats.queued == stats.cache.leases == 0


def test_a_slot_that_cannot_be_reset_kills_the_engine(open_rig: Open, gate: Any, read_last: Any) -> None:
    def hook(name: str, number: int) -> None:
        gate(name, number)
        if name == "reset" or (name == "advance" and number == 3):
            raise RuntimeError("the device is on fire")

    rig = open_rig(on_call=hook, slots=1)
    held = gate.hold("advance")
    waiting = [rig.submit(PROMPT), rig.submit(PROMPT)]
    held.wait()
    held.open()
    for generation in waiting:  # nobody is left waiting
        assert read_last(generation).finish_reason == "error"
    with pytest.raises(EngineDeadError):
        rig.submit(PROMPT)


class Grammar:
    """Allows even tokens; at its `at`-th token it raises, or allows nothing."""

    def __init__(self, at: int | None = None, *, dead_end: bool = False) -> None:
        self.said = 0
        self.at = at
        self.dead_end = dead_end

    def mask(self) -> Any:
        allowed = np.zeros(1024, np.bool_)
        if self.said != self.at:
            allowed[::2] = True
        elif not self.dead_end:
            raise ValueError("no such state")
        return allowed

    def advance(self, token: int) -> None:
        assert token % 2 == 0
        self.said += 1


@pytest.mark.parametrize("shape", [None, TREE], ids=["off", "tree"])
def test_constraints(open_rig: Open, read_last: Any, read_all: Any, shape: Any) -> None:
    rig = open_rig(speculation=shape)
    expected = rig.run(PROMPT, LONG).token_ids
    neighbour = rig.submit(PROMPT, LONG)
    good = rig.submit(PROMPT, constraint=Grammar())
    broken, stuck = (rig.submit(PROMPT, LONG, constraint=Grammar(5, dead_end=dead)) for dead in (False, True))
    assert all(token % 2 == 0 for token in read_all(good).token_ids)
    output = read_last(broken)
    assert (output.finish_reason, output.error) == ("error", "ValueError: no such state")
    output = read_last(stuck)
    assert output.finish_reason == "error"
    assert "constraint" in output.error
    assert read_all(neighbour).token_ids == expected
    rig.settle()
    assert rig.engine.stats().faults == 0


@pytest.mark.parametrize("shape", [None, TREE], ids=["off", "tree"])
def test_a_broken_text_stream_ends_its_request(
    open_rig: Open, read_last: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch, shape: Any
) -> None:
    rig = open_rig(speculation=shape)
    expected = rig.run(PROMPT, LONG).token_ids
    make, made = rig.tokenizer.stream, []

    class Broken:
        def push(self, ids: Any) -> Any:
            raise UnicodeError("cannot say this")

    def stream(**options: Any) -> Any:
        made.append(make(**options))
        return Broken() if len(made) == 2 else made[-1]

    monkeypatch.setattr(rig.tokenizer, "stream", stream)
    running = [rig.submit(PROMPT, LONG) for _ in range(3)]
    assert read_all(running[0]).token_ids == expected
    assert read_last(running[1]).error == "UnicodeError: cannot say this"
    assert read_all(running[2]).token_ids == expected
    rig.settle()


def test_nothing_leaks_over_a_thousand_faulty_requests(open_rig: Open, tokenizer: Any) -> None:
    rig = open_rig(speculation=TREE, block_budget=1 << 22, snapshot_budget=1 << 22, max_tokens=512, prefill_chunk=64)
    rig.run(PROMPT)
    rig.settle()
    rng = np.random.default_rng(0)
    for index in range(1000):
        prompt = (*PROMPT[: int(rng.integers(1, 290))], int(rng.integers(0, 1024)))
        kind = index % 5
        if kind == 0:
            with pytest.raises(RequestError):
                rig.submit((*prompt, 1024))
        elif kind == 1:
            rig.submit(prompt, LONG, constraint=Grammar(int(rng.integers(0, 3))))._channel.wait()
        elif kind == 2:
            rig.submit(prompt, LONG).cancel()
        elif kind == 3:
            next(rig.submit(prompt, LONG))
        else:
            rig.submit(prompt, LONG, deadline_s=1e-6)._channel.wait()
    rig.settle()
    assert rig.engine.stats().healthy
    assert len(rig.run(PROMPT).token_ids) == 8
