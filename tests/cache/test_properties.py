"""Random conversations against a brute-force oracle: what is restored, what is kept, what is never lost."""

from __future__ import annotations

import random
from itertools import zip_longest
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

from edgellm.cache import RetentionPlan, Tier, TokenKey, TokenRange, offload, recall
from edgellm.cache.keys import salt_digest

words = st.lists(st.integers(0, 2), max_size=9).map(tuple)
some = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)
salts = st.sampled_from(["", "", "a"])


@st.composite
def plans(draw, size: int) -> RetentionPlan:
    """Ranges over a prompt of `size` tokens, and a priority for what is generated."""
    cuts = sorted(draw(st.sets(st.integers(0, size + 3), max_size=5)))
    durations = st.none() | st.integers(1, 5)
    ranges = [
        TokenRange(start, end, draw(st.integers(0, 100)), draw(durations))
        for start, end in zip_longest(cuts, cuts[1:])
        if draw(st.booleans())
    ]
    return RetentionPlan(size, tuple(ranges), draw(st.integers(0, 100)), draw(durations))


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class CacheMachine(RuleBasedStateMachine):
    """Several sequences at a time, stopped at any moment, in a cache of a few blocks."""

    make_engine: ClassVar = None
    clock: ClassVar = None
    folder: ClassVar = None

    @initialize(
        block=st.integers(1, 5),
        blocks=st.integers(0, 14),
        snapshots=st.integers(0, 5),
        slots=st.integers(1, 3),
        share=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        tier_bytes=st.integers(0, 2000),
        files=st.booleans(),
    )
    def begin(self, block, blocks, snapshots, slots, share, tier_bytes, files) -> None:
        kind = type(self)
        self.engine = kind.make_engine(block=block, blocks=blocks, snapshots=snapshots, slots=slots, share=share)
        folder = kind.folder if files else None
        self.tier = Tier(self.engine.executor.info, budget_bytes=tier_bytes, directory=folder, clock=kind.clock)
        self.transfer = None
        self.live = []
        self.history = [()]

    @precondition(lambda self: self.engine.free)
    @rule(data=st.data(), tail=some, salt=salts)
    def start(self, data, tail, salt) -> None:
        base = data.draw(st.sampled_from(self.history))
        prompt = base[: data.draw(st.integers(0, len(base)))] + tail
        plan = data.draw(plans(len(prompt)))
        live = self.engine.start(prompt, salt=salt)
        live.retention = plan
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

    @precondition(lambda self: self.engine.free or self.live)
    @rule(seed=st.integers(0, 1 << 16))
    def life_goes_on(self, seed) -> None:
        """Requests that go on with what was said lately, or with the beginning of it; between them a transfer."""
        chance = random.Random(seed)
        for _ in range(6):
            if self.live and (not self.engine.free or chance.random() < 0.3):
                self.end(chance.choice(self.live))
            self.turn(chance)
            if self.transfer is None:
                tokens = chance.choice(self.history[-4:])
                self.begin_transfer(chance.random() < 0.5, tokens, chance.choice(("", "", "a")), chance.randint(1, 60))
            self.go_on(chance.randint(1, 9))
            self.holds()

    def turn(self, chance) -> None:
        base = chance.choice(self.history[-6:])
        base = () if len(base) > 24 else base
        prompt = base[: chance.choice((len(base), chance.randint(0, len(base))))]
        prompt += tuple(chance.randrange(3) for _ in range(chance.randint(1, 6)))
        answer = tuple(chance.randrange(3) for _ in range(chance.randint(0, 4)))
        if len(self.engine.free) > 1 and chance.random() < 0.3:
            live = self.engine.start(prompt)
            live.restore(every=chance.randint(0, 4))
            self.live.append(live)
            while chance.random() < 0.7 and live.step():
                pass
            self.history.append(prompt)
            return
        kept = TokenRange(chance.randint(0, len(prompt)), None, chance.randrange(101), chance.choice((None, 2.0)))
        self.engine.turn(
            prompt,
            answer=answer,
            salt=chance.choice(("", "", "a")),
            stable=chance.choice((None, [max(len(prompt) - 1, 0)])),
            every=chance.randint(0, 4),
            ranges=(kept,),
            decode_priority=chance.randrange(101),
        )
        self.history.append(prompt + answer)

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

    @rule(data=st.data(), away=st.booleans(), salt=salts, steps=st.integers(1, 20))
    def move(self, data, away, salt, steps) -> None:
        if self.transfer is None:
            base = data.draw(st.sampled_from(self.history[:-9:-1]))
            tokens = base[: len(base) - data.draw(st.integers(0, min(len(base), 3)))]
            self.begin_transfer(away, tokens, salt, data.draw(st.integers(1, 60)))
        self.go_on(steps)

    def begin_transfer(self, away, tokens, salt, step_bytes) -> None:
        self.moving = (away, tokens, salt)
        if away:
            self.transfer = offload(self.engine.cache, self.tier, tokens, salt=salt)
        else:
            self.transfer = recall(self.engine.cache, self.tier, tokens, salt=salt, step_bytes=step_bytes)

    def go_on(self, steps) -> None:
        """A few steps of the transfer. Its end is told rightly, and nothing that could be restored was lost by it."""
        away, tokens, salt = self.moving
        for _ in range(steps):
            before, result = self.restorable(), None
            try:
                next(self.transfer)
            except StopIteration as end:
                self.transfer, result = None, end.value
            if result is not None:
                there = self.engine.cache.match(tokens, salt=salt).length
                assert result.tokens == (self.in_tier() if away else there)
                assert self.restorable() >= before or not away
                return

    def in_tier(self) -> int:
        _, tokens, salt = self.moving
        found = self.tier.find(TokenKey(tokens), salt_digest(salt))
        return 0 if found is None else found.offset

    def restorable(self) -> int:
        """Tokens of the path in transfer that the cache or the tier has."""
        _, tokens, salt = self.moving
        return max(self.engine.cache.match(tokens, salt=salt).length, self.in_tier())

    @precondition(lambda self: self.transfer is not None)
    @rule()
    def stop_transfer(self) -> None:
        self.transfer.close()
        self.transfer = None

    @precondition(lambda self: self.transfer is not None)
    @rule()
    def transfer_fails(self) -> None:
        self.engine.executor.fail_next = 1
        try:
            for _ in self.transfer:
                pass
        except MemoryError:
            pass
        self.transfer = None
        self.engine.executor.fail_next = 0

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
        self.tier.check()
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
        if self.transfer is not None:
            self.transfer.close()
        self.tier.close()
        self.engine.cache.clear()
        self.engine.cache.check()
        assert not self.engine.executor.blocks
        assert not self.engine.executor.snapshots
        assert self.engine.cache.stats().leases == 0


def test_random_conversations(make_engine, clock, tmp_path) -> None:
    class Bound(CacheMachine):
        pass

    Bound.make_engine, Bound.clock, Bound.folder = staticmethod(make_engine), clock, tmp_path
    run_state_machine_as_test(Bound, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))
