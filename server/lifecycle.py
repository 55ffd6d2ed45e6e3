"""A request that generates, from admission to its entry in the books.

What must stay true: every request that began is ended once, whatever happens; those who keep books hear of it after
the engine does and cannot disturb the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgellm.runtime.generation import Generation
from edgellm.runtime.types import Output, Request
from edgellm.server.admission.gate import Admission, Pass
from edgellm.server.answer import Job
from edgellm.server.caller import Caller
from edgellm.server.generations import Generations
from edgellm.server.metrics import Metrics
from edgellm.server.sessions.table import Sessions
from edgellm.server.turns import TurnObserver, TurnRecord, unix_ms

log = logging.getLogger("edgellm.server")


@dataclass(frozen=True, slots=True)
class Desk:
    """What all requests of a server share.

    Attributes:
        submit: gives a request to the engine.
        queued: requests that wait for a slot now.
        observers: hear of every request that ended.
        sessions: the table of those that are alive.
        admission: lets requests in; None: the engine's queue is the only one.
    """

    model: str
    submit: Callable[[Request], Generation]
    queued: Callable[[], int]
    metrics: Metrics
    sessions: Sessions
    observers: list[TurnObserver] = field(default_factory=list)
    admission: Admission | None = None


class Lifecycle:
    """Implements `sse.Course` for one job.

    Args:
        x_request_id: of the HTTP request.
    """

    def __init__(self, desk: Desk, job: Job, caller: Caller, x_request_id: str) -> None:
        self.id = job.requests[0].id
        self._desk = desk
        self._job = job
        self._caller = caller
        self._x_request_id = x_request_id
        self._begun = False
        self._pass: Pass | None = None
        self._answer: list[int] = []  # tokens of the first generation, for admission

    async def begin(self) -> Generations:
        requests: Sequence[Request] = self._job.requests
        first = requests[0]
        self._desk.sessions.begin(self._caller.identity, len(first.prompt), salt=first.cache.salt)
        self._begun = True
        if self._desk.admission is not None:
            requests = await self._admitted(self._desk.admission, requests)
        self._job.facts.queue_depth = self._desk.queued()
        generations = Generations.submit(self._desk.submit, requests)
        self._stoppable(generations.cancel)
        return generations

    async def _admitted(self, admission: Admission, requests: Sequence[Request]) -> Sequence[Request]:
        first = requests[0]
        try:
            async with asyncio.timeout(None) as waiting:
                self._stoppable(lambda: waiting.reschedule(0))
                self._pass = admitted = await admission.enter(
                    self._caller.identity,
                    first.prompt,
                    salt=first.cache.salt,
                    expected_output=self._job.expected_output,
                    deadline_s=first.deadline_s,
                )
        except TimeoutError:  # it was stopped: it ends as soon as the engine has it
            return requests
        self._job.facts.held_s = admitted.held_s
        left = None if first.deadline_s is None else max(first.deadline_s - admitted.held_s, 0.001)
        return [replace(each, priority=each.priority + admitted.priority, deadline_s=left) for each in requests]

    def _stoppable(self, stop: Callable[[], None]) -> None:
        if self._job.stoppable is not None:
            self._job.stoppable(stop)

    def saw(self, index: int, output: Output) -> None:
        if self._pass is not None and index == 0:
            self._answer += output.token_ids
            self._pass.progressed(len(self._answer))

    def end(self, outcome: str, finals: Mapping[int, Output]) -> None:
        if self._pass is not None:
            self._pass.done(self._answer)
        answer = self._job.answer
        for index in range(len(self._job.requests)):
            empty = outcome == "ok" and answer.empty(index)
            self._desk.metrics.finished(outcome, finals.get(index), empty=empty)
        record = self._record(outcome, finals)
        if self._begun:
            self._desk.sessions.on_turn(record)
        _tell(self._desk.observers, record)

    def _record(self, outcome: str, finals: Mapping[int, Output]) -> TurnRecord:
        first = finals.get(0, Output())
        return TurnRecord(
            request_id=self.id,
            x_request_id=self._x_request_id,
            surface=self._job.surface,
            model=self._desk.model,
            identity=self._caller.identity,
            trigger=self._job.trigger,
            prompt=self._job.requests[0].prompt,
            received_unix_ms=self._job.facts.received_unix_ms,
            ended_unix_ms=unix_ms(),
            outcome=outcome,
            finish_reason=first.finish_reason,
            stop_reason=first.stop_reason,
            usage=self._job.answer.usage,
            timing=first.timing,
            tool_calls=self._job.answer.tool_calls(),
            held_s=self._job.facts.held_s,
            paused=self._pass is not None and self._pass.paused,
            queue_depth=self._job.facts.queue_depth,
            choices=len(self._job.requests),
            salt=self._job.requests[0].cache.salt,
        )


def _tell(observers: Sequence[TurnObserver], record: TurnRecord) -> None:
    for observer in observers:
        try:
            observer(record)
        except Exception:
            log.exception("request %s: an observer of turns failed", record.request_id)
