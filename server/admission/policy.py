"""Which programs keep their place in the cache: the state machine of ThunderAgent, with the clock given from outside.

A program reasons (turns in flight) or acts (between turns), and is active (its tokens count as used) or paused. Above
`pause_threshold` programs are paused, those between turns at once, the smallest first; a turn of a paused program
waits until there is room. What must stay true:
* A turn that runs is never stopped: a program with turns is at most marked, and paused when they are over.
* A program that is admitted or resumed fits, unless its turn waited `resume_timeout_s` or is too large to fit beside
  anything and nothing runs. So every turn runs at last.
* A turn of an active program never waits, however many the program has.
* A new program does not pass one that waits. Among those that wait, the order is: larger than the ceiling last; before
  the others those whose turn waited `patience_s`, by their time; then paused ones before new ones, the smaller first,
  equal ones by their time. The first that does not fit holds up the rest, so that small programs cannot starve a
  larger one.
* A program paused in an evaluation is not resumed in it. The last active program is paused only for one that waits.
* `used` is the sum over the active programs.

Source: ThunderAgent as in NVIDIA Dynamo 1.6.1. Differences: capacity is blocks and snapshots of one engine; every event
is followed by an evaluation, so that nothing waits for a tick; a new program is admitted up to `pause_threshold`, so
that no admission leads to a pause; a program that acts makes room for one that waits, after `acting_hold_s` (or
`idle_hold_s` when nothing runs), and at once for one that waited `patience_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from edgellm.server.admission.budget import NOTHING, Budget, Need
from edgellm.server.admission.program import Action, Decision, Detail, Key, Program, ProgramRow, Turn
from edgellm.server.admission.settings import AdmissionSettings

_DEMOTED_INTERVALS = 1.5  # a demotion outlives the tick that would repeat it


class Scheduler:
    """See the module's docstring. One caller at a time; `clock` gives seconds and never goes back.

    Every event returns the decisions that it led to, in their order.
    """

    def __init__(self, budget: Budget, settings: AdmissionSettings, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.settings = settings
        self.used = NOTHING
        self._clock = clock
        self._programs: dict[Key, Program] = {}
        self._active: dict[Key, Program] = {}
        self._paused: dict[Key, Program] = {}
        self._waiting: dict[Key, Program] = {}  # of those, the ones with turns
        self._marked: dict[Key, Program] = {}  # to be paused when their turns are over
        self._decisions: list[Decision] = []

    @property
    def utilisation(self) -> float:
        return self.budget.share(self.used)

    def programs(self) -> list[ProgramRow]:
        now = self._clock()
        return [
            ProgramRow(
                program.key,
                program.phase,
                program.steps,
                program.tokens,
                self._size(program),
                program.key in self._marked,
                now - _since(program),
            )
            for program in self._programs.values()
        ]

    def arrive(self, key: Key, prompt_tokens: int, expected_output: int = 0) -> tuple[Turn, list[Decision]]:
        """A turn begins. It may run when its `admitted` is set; else a later event sets it."""
        now = self._clock()
        turn = Turn(key, prompt_tokens, expected_output, now)
        program = self._programs.get(key)
        fresh = program is None
        if program is None:
            self._limit()
            program = self._programs[key] = Program(key, now, paused_since=now)
            self._paused[key] = program
        turn.paused = not fresh and not program.active
        program.steps += 1
        program.ended = False
        program.turns.append(turn)
        self._recount(program)
        if program.active:
            self._run(program, turn)
            self._decide(program, "admit", reason="active")
        elif fresh and not self._waiting and self._fits(program, self.settings.pause_threshold):
            self._activate(program, "admit", reason="fits")
        else:
            self._waiting[key] = program
        self._evaluate()
        if turn.admitted is None:
            self._decide(program, "queue", reason="new" if fresh else "paused")
        return turn, self._take()

    def progressed(self, turn: Turn, generated: int) -> None:
        """So many tokens were generated so far. The next event or tick acts on it."""
        turn.generated = generated
        self._recount(self._programs[turn.key])

    def finished(self, turn: Turn, tokens: int | None = None) -> list[Decision]:
        """A turn is over, or its client left while it waited.

        Args:
            tokens: of prompt and answer; None: as far as it is known.
        """
        program = self._programs[turn.key]
        program.turns.remove(turn)
        if turn.admitted is not None:
            program.peak = max(program.peak, turn.prompt + turn.generated if tokens is None else tokens)
        else:
            self._decide(program, "leave")
        self._recount(program)
        if not program.turns:
            self._turns_over(program, ran=turn.admitted is not None)
        self._evaluate()
        return self._take()

    def final(self, key: Key) -> list[Decision]:
        """The session is over: it is forgotten, with its last turn if it has some in flight."""
        program = self._programs.get(key)
        if program is not None:
            program.ended = True
            if not program.turns:
                self._forget(program, "final")
        self._evaluate()
        return self._take()

    def tick(self) -> list[Decision]:
        """To be called every `interval_s`: what only time brings about."""
        now = self._clock()
        for program in list(self._programs.values()):
            if not program.turns and now - program.idle_since >= self.settings.retention_s:
                self._forget(program, "expired")
        self._demote()
        self._evaluate(acting_too=True)
        return self._take()

    # Decisions

    def _turns_over(self, program: Program, *, ran: bool) -> None:
        self._waiting.pop(program.key, None)
        if ran:
            program.held, program.peak, program.idle_since = program.peak, 0, self._clock()
            self._recount(program)
        if program.ended or program.key.anonymous or program.held == 0:
            self._forget(program, "ended" if ran else "left")
        elif self._marked.pop(program.key, None) is not None:
            if self.utilisation > self.settings.pause_target and self._may_pause():
                self._pause(program, "marked")
            else:
                self._decide(program, "unmark")

    def _demote(self) -> None:
        if not self.settings.soft_demote_threshold <= self.utilisation < self.settings.pause_threshold:
            return
        now = self._clock()
        for key, program in self._active.items():
            if key in self._marked:
                continue
            if program.demoted_until <= now:
                self._decide(program, "demote")
            program.demoted_until = now + _DEMOTED_INTERVALS * self.settings.interval_s

    def _evaluate(self, *, acting_too: bool = False) -> None:
        """Resume, force, pause. `acting_too`: when nobody waits, programs without a turn are resumed as well."""
        before = list(self._paused.values())
        self._resume_waiting()
        self._force()
        if acting_too and not self._waiting:
            for program in sorted(filter(lambda each: not each.active, before), key=self._order):
                if not self._fits(program, self.settings.resume_ceiling):
                    break
                self._activate(program, "resume", reason="acting")
        if self._relieve():
            self._resume_waiting()

    def _resume_waiting(self) -> None:
        while self._waiting:
            program = min(self._waiting.values(), key=self._order)
            if self._fits(program, self.settings.resume_ceiling):
                self._activate(program, "resume", reason="fits")
            elif self._oversized(program):
                if any(other.turns for other in self._active.values()):
                    return
                self._activate(program, "resume", reason="alone")
            elif displaced := self._room_for(program):
                for other in displaced:
                    self._pause(other, "displaced")
                self._activate(program, "resume", reason="displaced")
            else:
                return

    def _room_for(self, program: Program) -> list[Program]:
        """Programs that acted for long enough, the longest first, whose pause lets this one fit; [] when none do."""
        acting = [other for other in self._active.values() if not other.turns]
        hold = self.settings.acting_hold_s
        if len(acting) == len(self._active):  # nothing runs: the engine is not kept idle for long
            hold = min(hold, self.settings.idle_hold_s)
        latest = self._clock() - (0.0 if self._impatient(program) else hold)
        left = self.used.plus(program.need)
        found: list[Program] = []
        for other in sorted(acting, key=lambda other: other.idle_since):
            if other.idle_since > latest:
                break
            found.append(other)
            left = left.less(other.need)
            if self.budget.share(left) <= self.settings.resume_ceiling:
                return found
        return []

    def _force(self) -> None:
        now = self._clock()
        for program in list(self._waiting.values()):
            if now - program.turns[0].arrived >= self.settings.resume_timeout_s:
                self._activate(program, "force", reason="timeout")

    def _relieve(self) -> bool:
        """Pause and mark while too much is used; whether anything was paused."""
        target = self.settings.pause_target
        if self.utilisation <= self.settings.pause_threshold:
            if self.utilisation <= target:
                for program in self._marked.values():
                    self._decide(program, "unmark")
                self._marked.clear()
            return False
        paused = False
        by_size = sorted(self._active.values(), key=self._size)
        for program in by_size:
            if self.utilisation <= target or not self._may_pause():
                return paused
            if not program.turns:
                self._pause(program, "pressure")
                paused = True
        left = self.used
        for program in self._marked.values():
            left = left.less(program.need)
        unmarked = [program for program in by_size if program.active and program.key not in self._marked]
        for program in unmarked if self._waiting else unmarked[:-1]:
            if self.budget.share(left) <= target:
                break
            self._marked[program.key] = program
            left = left.less(program.need)
            self._decide(program, "mark")
        return paused

    def _order(self, program: Program) -> tuple[bool, bool, float, bool, float, float]:
        """Who is resumed first; see the module's docstring."""
        patient = not self._impatient(program)
        since = 0.0 if patient else program.turns[0].arrived
        size, paused = self._size(program), program.paused_since or 0.0
        return self._oversized(program), patient, since, program.held == 0, size, paused

    def _impatient(self, program: Program) -> bool:
        return bool(program.turns) and self._clock() - program.turns[0].arrived >= self.settings.patience_s

    # Bookkeeping

    def _need(self, program: Program) -> Need:
        """What its tokens take: turns round up to whole blocks, a program between turns rounds down."""
        settings, block = self.settings, self.budget.block_tokens
        if program.turns:
            blocks = -(-(program.tokens + settings.buffer_tokens) // block)
        else:
            blocks = math.floor(program.tokens * settings.acting_token_weight + settings.buffer_tokens) // block
        return Need(blocks, settings.snapshots_per_session)

    def _size(self, program: Program) -> float:
        return self.budget.share(program.need)

    def _fits(self, program: Program, ceiling: float) -> bool:
        return self.budget.share(self.used.plus(program.need)) <= ceiling

    def _oversized(self, program: Program) -> bool:
        return self._size(program) > self.settings.resume_ceiling

    def _may_pause(self) -> bool:
        return len(self._active) > 1 or bool(self._waiting)

    def _recount(self, program: Program) -> None:
        need = self._need(program)
        if program.active:
            self.used = self.used.less(program.need).plus(need)
        program.need = need

    def _activate(self, program: Program, action: Action, *, reason: str) -> None:
        del self._paused[program.key]
        self._waiting.pop(program.key, None)
        program.paused_since = None
        self._active[program.key] = program
        self.used = self.used.plus(program.need)
        for turn in program.turns:
            self._run(program, turn, boost=0 if action == "admit" else self.settings.resume_priority_boost)
        self._decide(program, action, reason=reason)

    def _run(self, program: Program, turn: Turn, *, boost: int = 0) -> None:
        turn.admitted = self._clock()
        turn.priority = boost
        if program.demoted_until > turn.admitted:
            turn.priority += self.settings.soft_demote_priority
        program.demoted_until = 0.0

    def _pause(self, program: Program, reason: str) -> None:
        assert not program.turns, "a turn that runs is never stopped"
        del self._active[program.key]
        self.used = self.used.less(program.need)
        program.paused_since = self._clock()
        self._paused[program.key] = program
        self._decide(program, "pause", reason=reason)

    def _forget(self, program: Program, reason: str) -> None:
        del self._programs[program.key]
        for where in (self._active, self._paused, self._waiting, self._marked):
            where.pop(program.key, None)
        if program.active:
            self.used = self.used.less(program.need)
        self._decide(program, "forget", reason=reason)

    def _limit(self) -> None:
        """Room for one more program."""
        if len(self._programs) >= self.settings.max_sessions:
            idle = [program for program in self._programs.values() if not program.turns]
            if idle:
                self._forget(min(idle, key=lambda program: program.idle_since), "limit")

    def _decide(self, program: Program, action: Action, **details: Detail) -> None:
        details |= {"tokens": program.tokens, "share": self._size(program)}
        self._decisions.append(Decision(self._clock(), program.key, action, self.utilisation, details))

    def _take(self) -> list[Decision]:
        taken, self._decisions = self._decisions, []
        return taken


def _since(program: Program) -> float:
    """When its phase began."""
    if program.turns:
        return min(turn.arrived for turn in program.turns)
    return program.idle_since if program.paused_since is None else program.paused_since
