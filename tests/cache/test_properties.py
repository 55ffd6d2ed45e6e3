"""Random conversations against a brute-force oracle: what is restored, what is kept, what is never lost."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

words = st.lists(st.integers(0, 2), max_size=9).map(tuple)
some = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class CacheMachine(RuleBasedStateMachine):
    """Several sequences at a time, stopped at any moment, in a cache of a few blocks."""

    make_engine: ClassVar = None
    clock: ClassVar = None

    @initialize(
        block=st.integers(1, 5), blocks=st.integers(0, 14), snapshots=st.integers(0, 5), slots=st.integers(1, 3)
    )
    def begin(self, block, blocks, snapshots, slots) -> None:
        self.engine = type(self).make_engine(block=block, blocks=blocks, snapshots=snapshots, slots=slots)
        self.live = []
        self.history = [()]

    @precondition(lambda self: self.engine.free)
    @rule(data=st.data(), tail=some, salt=st.sampled_from(["", "a"]), priority=st.none() | st.integers(0, 100))
    def start(self, data, tail, salt, priority) -> None:
        base = data.draw(st.sampled_from(self.history))
        prompt = base[: data.draw(st.integers(0, len(base)))] + tail
        duration = None if priority is None else data.draw(st.none() | st.integers(1, 5))
        live = self.engine.start(prompt, salt=salt, priority=priority, duration_s=duration)
        self.check_lease(live)
        self.live.append(live)

    def check_lease(self, live) -> None:
        """The lease is the best there is among everything that the executor holds."""
        executor, prompt = self.engine.executor, live.prompt
        limit = len(prompt) - 1
        usable = [
            len(kept.tokens)
            for kept in executor.snapshots.values()
            if kept.salt == live.salt and len(kept.tokens) <= limit and prompt[: len(kept.tokens)] == kept.tokens
        ]
        agree = [common(kept.tokens, prompt[:limit]) for kept in executor.blocks.values() if kept.salt == live.salt]
        assert live.lease.length == max(usable, default=0)
        assert live.lease.matched == max(agree, default=0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), every=st.integers(0, 4), min_gap=st.integers(1, 4), stable=st.none() | st.integers(0, 3))
    def advance(self, data, every, min_gap, stable) -> None:
        live = data.draw(st.sampled_from(self.live))
        if not live.restored:
            back = None if stable is None else [max(len(live.prompt) - stable, 0)]
            live.restore(back, every=every, min_gap=min_gap)
        elif not live.step():
            self.end(live)

    @precondition(lambda self: any(live.restored for live in self.live))
    @rule(data=st.data(), answer=some)
    def answer(self, data, answer) -> None:
        live = data.draw(st.sampled_from([live for live in self.live if live.restored]))
        whole = live.prompt + answer
        live.store(whole, len(whole), data.draw(st.sampled_from([None, "output"])))
        self.history.append(whole)
        self.end(live)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.end(data.draw(st.sampled_from(self.live)))

    def end(self, live) -> None:
        self.live.remove(live)
        live.end()
        self.history.append(live.prompt)

    @precondition(lambda self: any(live.restored for live in self.live))
    @rule(data=st.data())
    def executor_fails(self, data) -> None:
        live = data.draw(st.sampled_from([live for live in self.live if live.restored]))
        self.engine.executor.fail_next = 1
        try:
            live.store(live.prompt, len(live.prompt), "stable")
        except MemoryError:
            self.end(live)
        self.engine.executor.fail_next = 0

    @rule(data=st.data(), priority=st.integers(0, 100))
    def retain(self, data, priority) -> None:
        tokens = data.draw(st.sampled_from(self.history))
        start = data.draw(st.integers(0, len(tokens)))
        self.engine.cache.retain(tokens, start=start, priority=priority, duration_s=2)

    @rule()
    def time_passes(self) -> None:
        type(self).clock.now += 1

    @rule()
    def clear(self) -> None:
        self.engine.cache.clear()

    @invariant()
    def holds(self) -> None:
        cache, executor = self.engine.cache, self.engine.executor
        cache.check()
        stats = cache.stats()
        assert (stats.blocks, stats.snapshots) == (len(executor.blocks), len(executor.snapshots))
        assert stats.block_bytes <= stats.block_budget_bytes
        assert stats.snapshot_bytes <= stats.snapshot_budget_bytes
        for live in self.live:
            if not live.restored:  # what a lease found stays restorable
                lease = live.lease
                executor.begin(live.slot, live.salt, lease.length, lease.blocks, lease.snapshot)
                assert executor.slots[live.slot] == live.prompt[: lease.length]
            elif live.stored:
                assert cache.match(live.prompt[: live.stored], salt=live.salt).matched >= min(
                    live.stored, len(live.prompt)
                )

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for live in list(self.live):
            live.end()
        self.engine.cache.clear()
        self.engine.cache.check()
        assert not self.engine.executor.blocks
        assert not self.engine.executor.snapshots
        assert self.engine.cache.stats().leases == 0


def test_random_conversations(make_engine, clock) -> None:
    class Bound(CacheMachine):
        pass

    Bound.make_engine, Bound.clock = staticmethod(make_engine), clock
    run_state_machine_as_test(Bound, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))
