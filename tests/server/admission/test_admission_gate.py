"""Requests at the gate: waiting, leaving, deadlines, drain, and the moves of paused sessions' state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from edgellm.server.admission.budget import Budget
from edgellm.server.admission.gate import Admission, Pass
from edgellm.server.admission.policy import Scheduler
from edgellm.server.admission.program import Decision
from edgellm.server.admission.settings import AdmissionSettings
from edgellm.server.admission.tier import EngineTier
from edgellm.server.errors import ApiError
from edgellm.server.sessions.identity import Identity

BUDGET = Budget(block_tokens=1, block_bytes=1, total_blocks=1000, snapshot_bytes=1, total_snapshots=10_000)


class FakeTier:
    """Notes what is moved; `slow` makes a move last until `let_go`."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, str]] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def offload(self, tokens: Sequence[int], salt: str) -> None:
        await self._move("offload", tokens, salt)

    async def recall(self, tokens: Sequence[int], salt: str) -> None:
        await self._move("recall", tokens, salt)

    async def _move(self, what: str, tokens: Sequence[int], salt: str) -> None:
        self.said.append((what, len(tokens), salt))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.said.append((f"{what} done", len(tokens), salt))


class Bench:
    """Admission on a clock that the test moves."""

    def __init__(self, tier: FakeTier | None = None, **changes: Any) -> None:
        self.now = 0.0
        self.draining = False
        self.said: list[Decision] = []
        settings = replace(AdmissionSettings(buffer_tokens=0), **changes)
        scheduler = Scheduler(BUDGET, settings, lambda: self.now)
        self.admission = Admission(
            scheduler, tier=tier, draining=lambda: self.draining, observers=[self.said.append], retry_after_s=3
        )

    async def enter(self, name: str | None, tokens: int, *, final: bool = False, **rest: Any) -> Pass:
        identity = None if name is None else Identity(name, final=final)
        return await self.admission.enter(identity, range(tokens), **rest)

    def start(self, name: str | None, tokens: int, **rest: Any) -> asyncio.Task[Pass]:
        return asyncio.create_task(self.enter(name, tokens, **rest))

    def phases(self) -> dict[str, str]:
        return {row.key.session_id: row.phase for row in self.admission.programs()}


def run(course: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(course, 20))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_turn_waits_until_there_is_room() -> None:
    async def course() -> None:
        bench = Bench()
        first = await bench.enter("a", 600)
        assert (first.priority, first.paused) == (0, False)
        second = bench.start("b", 600)
        await settle()
        assert not second.done()
        assert bench.admission.stats().waiting_turns == 1
        first.done()
        await settle()
        assert not second.done(), "a acts, and keeps its place for a while"
        bench.now += 5
        bench.admission._apply(bench.admission.scheduler.tick())
        admitted = await second
        assert admitted.priority == 1
        assert not admitted.paused, "it is new"
        assert bench.phases() == {"a": "paused", "b": "reasoning"}
        assert [decision.action for decision in bench.said] == ["admit", "queue", "pause", "resume"]
        stats = bench.admission.stats()
        assert (stats.waiting_turns, stats.paused, stats.reasoning, stats.used_bytes) == (0, 1, 1, 603)

    run(course())


def test_the_final_request_makes_room_when_it_is_done() -> None:
    async def course() -> None:
        bench = Bench()
        first = await bench.enter("a", 600, final=True)
        second = bench.start("b", 600)
        await settle()
        first.done()
        first.done()
        await second
        assert bench.phases() == {"b": "reasoning"}

    run(course())


@pytest.mark.parametrize("moment", ["waiting", "let go"])
def test_a_client_that_leaves_while_it_waits_leaves_nothing(moment: str) -> None:
    async def course() -> None:
        bench = Bench()
        first = await bench.enter("a", 600, final=True)
        second = bench.start("b", 600, final=True)
        third = bench.start(None, 500)
        await settle()
        if moment == "let go":
            first.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert second.cancelled()
        first.done()
        (await third).done()
        assert bench.admission.programs() == []
        assert bench.admission.stats().waiting_turns == 0
        assert bench.admission.scheduler.used == (0, 0)

    run(course())


def test_requests_of_one_session_run_beside_each_other() -> None:
    async def course() -> None:
        bench = Bench()
        main = await bench.enter("a", 500)
        title = await bench.enter("a", 700)
        assert len(bench.admission.programs()) == 1
        title.done()
        main.done()
        assert bench.phases() == {"a": "acting"}

    run(course())


def test_the_deadline_holds_while_waiting() -> None:
    async def course() -> None:
        bench = Bench()
        await bench.enter("a", 600)
        with pytest.raises(ApiError) as caught:
            await bench.enter("b", 600, deadline_s=0.01)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
        assert bench.phases() == {"a": "reasoning"}

    run(course())


def test_too_many_that_wait_are_refused() -> None:
    async def course() -> None:
        bench = Bench(max_waiting=1)
        first = await bench.enter("a", 600)
        second = bench.start("b", 600)
        await settle()
        with pytest.raises(ApiError) as caught:
            await bench.enter("c", 600)
        assert (caught.value.status, caught.value.code) == (503, "queue_full")
        assert caught.value.headers == {"Retry-After": "3"}
        assert set(bench.phases()) == {"a", "b"}
        (await bench.enter("a", 100)).done()
        first.done()
        second.cancel()

    run(course())


def test_a_draining_server_lets_no_turn_wait() -> None:
    async def course() -> None:
        bench = Bench()
        async with bench.admission.running():
            first = await bench.enter("a", 600)
            second = bench.start("b", 600)
            await settle()
            bench.draining = True
            with pytest.raises(ApiError) as caught:
                await second
            assert (caught.value.status, caught.value.code) == (503, "shutting_down")
            with pytest.raises(ApiError, match="shutting down"):
                await bench.enter("c", 600)
            (await bench.enter("a", 600)).done()
            first.done()
        assert set(bench.phases()) == {"a"}

    run(course())


def test_the_end_of_the_server_releases_those_that_wait() -> None:
    async def course() -> None:
        bench = Bench()
        async with bench.admission.running():
            await bench.enter("a", 600)
            second = bench.start("b", 600)
            await settle()
        with pytest.raises(ApiError, match="shutting down"):
            await second

    run(course())


def test_time_passes_while_the_server_runs() -> None:
    async def course() -> None:
        bench = Bench(acting_hold_s=0.0, interval_s=0.01)
        async with bench.admission.running():
            (await bench.enter("a", 600)).done()
            second = await bench.enter("b", 600)
            second.done()
            bench.now += 1800
            while bench.phases():
                await asyncio.sleep(0.005)

    run(course())


def test_a_paused_session_is_offloaded_and_brought_back_before_its_turn() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        first = await bench.enter("a", 600, salt="t")
        first.done(range(20))
        second = await bench.enter("b", 500)
        assert tier.said[:2] == [("offload", 620, "t"), ("offload done", 620, "t")], "before the other's turn began"
        assert tier.said[2:] == [("recall", 500, ""), ("recall done", 500, "")], "it may have been known long ago"
        third = bench.start("a", 650, salt="t")
        await settle()
        assert not third.done()
        second.done(range(5))
        admitted = await third
        assert admitted.paused
        assert tier.said[4:] == [
            *(("offload", 505, ""), ("offload done", 505, "")),
            *(("recall", 650, "t"), ("recall done", 650, "t")),
        ]
        stats = bench.admission.stats()
        assert (stats.offloads, stats.recalls, stats.failed_moves) == (2, 2, 0)
        admitted.done()
        (await bench.enter("a", 660, salt="t")).done()
        assert len(tier.said) == 8, "nothing is brought back that is there"

    run(course())


def test_a_turn_waits_for_the_moves_and_may_leave_meanwhile() -> None:
    async def course() -> None:
        tier = FakeTier()
        tier.gate = asyncio.Event()
        bench = Bench(tier, acting_hold_s=0.0)
        (await bench.enter("a", 600)).done()
        leaving, staying = bench.start("b", 400), bench.start("c", 300)
        await settle()
        assert tier.said == [("offload", 600, "")]
        assert not leaving.done()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert not staying.done()
        tier.gate.set()
        (await staying).done()
        assert bench.phases()["a"] == "paused"
        assert bench.admission.stats().offloads == 1

    run(course())


def test_a_client_that_leaves_during_the_recall_does_not_lose_the_state() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        (await bench.enter("a", 600)).done()
        (await bench.enter("b", 600, final=True)).done()
        tier.gate = asyncio.Event()
        leaving = bench.start("a", 650)
        await settle()
        assert tier.said[-1] == ("recall", 650, "")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        tier.gate.set()
        (await bench.enter("a", 650)).done()
        assert tier.said[-2:] == [("recall", 650, ""), ("recall done", 650, "")], "asked for once more"

    run(course())


def test_a_move_that_fails_fails_no_request() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        (await bench.enter("a", 600)).done()
        (await bench.enter("b", 600)).done()
        tier.error = RuntimeError("disk full")
        (await bench.enter("a", 600)).done()
        assert bench.admission.stats().failed_moves == 2

    run(course())


def test_an_idle_session_comes_back_when_there_is_room() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        (await bench.enter("a", 300)).done(range(10))
        (await bench.enter("b", 700, final=True)).done()
        bench.admission._apply(bench.admission.scheduler.tick())
        await settle()
        assert tier.said[4:] == [("recall", 310, ""), ("recall done", 310, "")]
        assert bench.phases() == {"a": "acting"}
        (await bench.enter("a", 320)).done()
        assert len(tier.said) == 6

    run(course())


def test_the_longer_of_two_requests_at_a_time_is_what_is_moved() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        main, title = await bench.enter("a", 500), await bench.enter("a", 30)
        main.done(range(50))
        title.done(range(5))
        (await bench.enter("b", 600)).done()
        assert tier.said[0] == ("offload", 550, "")
        bench = Bench(tier, acting_hold_s=0.0)
        (await bench.enter("a", 500)).done()
        (await bench.enter("a", 400)).done(range(7))
        (await bench.enter("b", 600)).done()
        assert tier.said[4] == ("offload", 407, ""), "of two that follow each other, the later"

    run(course())


def test_requests_without_session_are_never_moved() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0)
        for _ in range(3):
            (await bench.enter(None, 900)).done()
        assert tier.said == []
        assert bench.admission.programs() == []

    run(course())


def test_progress_counts_and_an_observer_that_fails_harms_nobody() -> None:
    async def course() -> None:
        bench = Bench()

        def broken(_: Decision) -> None:
            raise ValueError

        bench.admission.observers.insert(0, broken)
        first = await bench.enter("a", 300)
        first.progressed(200)
        assert bench.admission.scheduler.used.blocks == 500
        first.done()
        first.progressed(900)
        assert bench.admission.scheduler.used.blocks == 500
        assert len(bench.said) == 1

    run(course())


def test_the_engines_tier() -> None:
    class Engine:
        def offload(self, tokens: Sequence[int], *, salt: str) -> Future[object]:
            future: Future[object] = Future()
            future.set_result(("out", list(tokens), salt))
            return future

        def recall(self, tokens: Sequence[int], *, salt: str) -> Future[object]:
            future: Future[object] = Future()
            future.set_exception(OSError("gone"))
            return future

    async def course() -> None:
        tier = EngineTier(Engine())
        await tier.offload([1], "s")
        with pytest.raises(OSError, match="gone"):
            await tier.recall([1], "s")

    run(course())


def test_nothing_is_left_after_many_requests_that_come_and_go() -> None:
    async def course() -> None:
        tier = FakeTier()
        bench = Bench(tier, acting_hold_s=0.0, max_waiting=8, retention_s=60)

        async def client(number: int) -> None:
            admitted = await bench.enter(f"s{number % 7}" if number % 5 else None, 50 + number * 37 % 700)
            try:
                await asyncio.sleep(0)
            finally:
                admitted.done(range(number % 9))

        async with bench.admission.running():
            for base in range(0, 600, 12):
                clients = [asyncio.create_task(client(base + n)) for n in range(12)]
                await asyncio.sleep(0)
                for task in clients[:: 3 + base % 4]:
                    task.cancel()
                for error in await asyncio.gather(*clients, return_exceptions=True):
                    assert error is None or isinstance(error, asyncio.CancelledError) or error.code == "queue_full"  # type: ignore[attr-defined]
            bench.now += 60
            bench.admission._apply(bench.admission.scheduler.tick())
            await settle()
            assert bench.admission.programs() == []
            stats = bench.admission.stats()
            assert (stats.waiting_turns, stats.used_bytes, stats.failed_moves) == (0, 0, 0)
            assert stats.offloads > 0
            moves = bench.admission._moves
            assert moves is not None
            assert not any((moves._here, moves._away, moves._leaving, moves._coming))

    run(course())
