"""Requests at the gate of admission: each enters, perhaps waits, and is done. Used on the server's event loop alone.

What must stay true: whatever ends a request, its turn is finished exactly once, also when the client leaves while it
waits; a turn that is let go starts when the moves of state that it depends on are done (`moves`); a server that drains
lets no turn wait.

Requests of one session run beside each other (a client may ask for a title while the answer is written); they count
into one program. A request without a session is a program of its own, which ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from edgellm.server.admission.moves import Moves
from edgellm.server.admission.policy import Scheduler
from edgellm.server.admission.program import Action, Decision, Key, ProgramRow, Turn
from edgellm.server.admission.tier import Tier
from edgellm.server.errors import ApiError, overloaded
from edgellm.server.sessions.identity import Identity

log = logging.getLogger("edgellm.server")

_LOOK_S: Final = 0.25  # between ticks while turns wait

DecisionObserver = Callable[[Decision], None]


@dataclass(frozen=True, slots=True)
class AdmissionStats:
    """Attributes:
    utilisation: used share of the cache's capacity, by admission's count.
    reasoning, acting, paused, waiting: programs now.
    waiting_turns: requests that wait now.
    held_s: seconds that requests waited, those that were let go.
    decisions: taken so far, by action.
    offloads, recalls, failed_moves: so far.
    """

    utilisation: float
    used_bytes: int
    reasoning: int
    acting: int
    paused: int
    waiting: int
    waiting_turns: int
    held_s: float
    decisions: dict[Action, int]
    offloads: int
    recalls: int
    failed_moves: int


class Pass:
    """A request that was let in.

    Attributes:
        priority: to be added to the request's own.
        held_s: how long it waited.
        paused: it found its session paused.
        entered: it was let go with its state in the cache; until then its session's state is where it was.
    """

    def __init__(self, admission: Admission, turn: Turn, number: int, prompt: Sequence[int], *, final: bool) -> None:
        self.held_s = 0.0
        self.entered = False
        self._number = number
        self._admission = admission
        self._turn = turn
        self._prompt = prompt
        self._final = final
        self._done = False

    @property
    def priority(self) -> int:
        return self._turn.priority

    @property
    def paused(self) -> bool:
        return self._turn.paused

    def progressed(self, generated: int) -> None:
        """So many tokens were generated so far; cheap."""
        if not self._done:
            self._admission.scheduler.progressed(self._turn, generated)

    def done(self, answer: Sequence[int] = ()) -> None:
        """The request is over. Further calls have no effect.

        Args:
            answer: the tokens that it generated, for the next turn to find with the prompt.
        """
        if self._done:
            return
        self._done = True
        if self.entered:
            self._admission._left_state(self._turn, self._number, self._prompt, answer)
        self._admission._finished(self._turn, len(answer), final=self._final)


class Admission:
    """See the module's docstring.

    Args:
        tier: takes the state of paused sessions; None: pausing only holds their turns.
        draining: whether the server stops.
        observers: hear of every decision.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        tier: Tier | None = None,
        retry_after_s: int = 1,
        draining: Callable[[], bool] = lambda: False,
        observers: Iterable[DecisionObserver] = (),
    ) -> None:
        self.scheduler = scheduler
        self.observers = list(observers)
        self._moves = None if tier is None else Moves(tier)
        self._retry_after_s = retry_after_s
        self._draining = draining
        self._turns = 0  # that have begun
        self._waiters: dict[Turn, asyncio.Future[None]] = {}
        self._held_s = 0.0
        self._counts: Counter[Action] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Time passes inside; outside of it only events are acted upon."""
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            self._release(_shutting_down())
            if self._moves is not None:
                self._moves.close()

    async def enter(
        self,
        identity: Identity | None,
        prompt: Sequence[int],
        *,
        salt: str = "",
        expected_output: int = 0,
        deadline_s: float | None = None,
    ) -> Pass:
        """Wait for a request's turn. Whoever gets the pass calls its `done`.

        Args:
            expected_output: tokens that the answer is expected to have; 0: unknown.
            deadline_s: seconds that the request has from now.

        Raises:
            ApiError: 503 when too many wait already or the server drains, 504 past the deadline.
        """
        self._turns += 1
        number = self._turns
        key = Key("", salt, number) if identity is None else Key(identity.session_id, salt)
        started = time.monotonic()
        turn, decisions = self.scheduler.arrive(key, len(prompt), expected_output)
        admitted = Pass(self, turn, number, prompt, final=identity is not None and identity.final)
        self._apply(decisions)
        try:
            async with asyncio.timeout(deadline_s):
                if turn.admitted is None:
                    await self._wait(turn)
                if self._moves is not None:
                    await self._moves.settled(key, prompt)
        except TimeoutError:
            admitted.done()
            message = f"not admitted within {deadline_s:g} s"
            raise ApiError(504, message, kind="server_error", code="deadline_exceeded") from None
        except BaseException:
            admitted.done()
            raise
        admitted.entered = True
        admitted.held_s = time.monotonic() - started
        self._held_s += admitted.held_s
        return admitted

    def programs(self) -> list[ProgramRow]:
        return self.scheduler.programs()

    def stats(self) -> AdmissionStats:
        phases = Counter(row.phase for row in self.scheduler.programs())
        moves = self._moves
        return AdmissionStats(
            utilisation=self.scheduler.utilisation,
            used_bytes=self.scheduler.budget.bytes(self.scheduler.used),
            reasoning=phases["reasoning"],
            acting=phases["acting"],
            paused=phases["paused"],
            waiting=phases["waiting"],
            waiting_turns=len(self._waiters),
            held_s=self._held_s,
            decisions=dict(self._counts),
            offloads=0 if moves is None else moves.offloads,
            recalls=0 if moves is None else moves.recalls,
            failed_moves=0 if moves is None else moves.failed,
        )

    async def _wait(self, turn: Turn) -> None:
        if self._draining():
            raise _shutting_down()
        if len(self._waiters) >= self.scheduler.settings.max_waiting:
            raise overloaded(f"{len(self._waiters)} requests wait for room already", self._retry_after_s)
        waiter = self._waiters[turn] = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            del self._waiters[turn]

    def _left_state(self, turn: Turn, number: int, prompt: Sequence[int], answer: Sequence[int]) -> None:
        if self._moves is not None:
            self._moves.note(turn.key, number, self._turns, prompt, answer)

    def _finished(self, turn: Turn, generated: int, *, final: bool) -> None:
        self._apply(self.scheduler.finished(turn, turn.prompt + max(turn.generated, generated)))
        if final:
            self._apply(self.scheduler.final(turn.key))

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._counts[decision.action] += 1
            if self._moves is not None:
                self._moves.decided(decision)
            for observer in self.observers:
                try:
                    observer(decision)
                except Exception:
                    log.exception("an observer of admission failed")
        for turn, waiter in self._waiters.items():
            if turn.admitted is not None and not waiter.done():
                waiter.set_result(None)

    async def _tick(self) -> None:
        interval = self.scheduler.settings.interval_s
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(min(interval, _LOOK_S))
            if self._waiters and self._draining():
                self._release(_shutting_down())
            if self._waiters or time.monotonic() >= due:
                self._apply(self.scheduler.tick())
                due = time.monotonic() + interval

    def _release(self, error: ApiError) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")
