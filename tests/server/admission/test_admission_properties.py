"""What admission promises for every course of events, on random courses with a clock that the test moves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.server.admission.budget import Budget
from edgellm.server.admission.policy import Scheduler
from edgellm.server.admission.program import Decision, Key, Turn
from edgellm.server.admission.settings import AdmissionSettings

BUDGET = Budget(block_tokens=16, block_bytes=1, total_blocks=200, snapshot_bytes=1, total_snapshots=30)
EPS = 1e-9


@dataclass
class Course:
    """Drives a scheduler and checks every promise after every event."""

    settings: AdmissionSettings
    now: float = 0.0
    running: dict[Turn, Key] = field(default_factory=dict)
    waiting: dict[Turn, Key] = field(default_factory=dict)
    known: set[Key] = field(default_factory=set)  # sessions that are to be remembered
    ended: set[Key] = field(default_factory=set)  # that said so, with turns in flight
    forced: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(BUDGET, self.settings, lambda: self.now)

    def arrive(self, key: Key, prompt: int, expected: int = 0) -> Turn:
        was_active = any(row.key == key and row.phase in ("reasoning", "acting") for row in self.scheduler.programs())
        turn, said = self.scheduler.arrive(key, prompt, expected)
        self.known.add(key)
        self.ended.discard(key)
        (self.waiting if turn.admitted is None else self.running)[turn] = key
        assert turn.admitted is not None or not was_active, "a turn of an active program never waits"
        self.check(said)
        return turn

    def finish(self, turn: Turn, tokens: int | None = None) -> None:
        """Also how a client that waits leaves."""
        ran = turn in self.running
        key = (self.running if ran else self.waiting).pop(turn)
        said = self.scheduler.finished(turn, tokens)
        for decision in said:
            if decision.action == "forget":
                assert key == decision.key
                assert key.anonymous or key in self.ended or not ran
                self.known.discard(key)
        self.check(said)

    def final(self, key: Key) -> None:
        said = self.scheduler.final(key)
        if key in self.known:
            if self.in_flight(key):
                self.ended.add(key)
            else:
                self.known.remove(key)
        self.check(said)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        said = self.scheduler.tick()
        self.known -= {decision.key for decision in said if decision.action == "forget"}
        self.check(said)

    def in_flight(self, key: Key) -> bool:
        return key in self.running.values() or key in self.waiting.values()

    def check(self, said: list[Decision]) -> None:
        for turn in [turn for turn in self.waiting if turn.admitted is not None]:
            self.running[turn] = self.waiting.pop(turn)
        rows = {row.key: row for row in self.scheduler.programs()}
        assert set(rows) == self.known, "every program is there once, and none that is over"
        active = [row for row in rows.values() if row.phase in ("reasoning", "acting")]
        for key, row in rows.items():
            runs, waits = key in self.running.values(), key in self.waiting.values()
            assert (runs, waits) == (row.phase == "reasoning", row.phase == "waiting"), "no turn that runs is stopped"
        blocks = sum(self.blocks(row.tokens, row.phase == "reasoning") for row in active)
        assert self.scheduler.used == (blocks, len(active) * self.settings.snapshots_per_session)
        self.check_decisions(said)

    def blocks(self, tokens: int, reasoning: bool) -> int:
        tokens += self.settings.buffer_tokens
        return -(-tokens // 16) if reasoning else tokens // 16

    def check_decisions(self, said: list[Decision]) -> None:
        paused: set[Key] = set()
        for decision in said:
            reason = decision.details.get("reason")
            if decision.action == "admit" and reason == "fits":
                assert decision.utilisation <= self.settings.pause_threshold + EPS
            if decision.action == "resume":
                assert decision.key not in paused, "paused and resumed at once"
                if reason == "alone":
                    assert decision.details["share"] > self.settings.resume_ceiling  # type: ignore[operator]
                else:
                    assert decision.utilisation <= self.settings.resume_ceiling + EPS
            if decision.action == "pause":
                paused.add(decision.key)
            self.forced += decision.action == "force"


KEYS = [Key(f"s{n}") for n in range(8)]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "finish", "finish", "grow", "leave", "final", "tick", "anonymous", "wait"]
        ),
        st.integers(0, 1 << 16),
        st.integers(1, 4000),
    ),
    max_size=60,
)
SETTINGS = st.builds(
    AdmissionSettings,
    buffer_tokens=st.sampled_from([0, 100]),
    acting_hold_s=st.sampled_from([0.0, 5.0, 60.0]),
    pause_target=st.sampled_from([0.3, 0.8, 0.95]),
    resume_hysteresis=st.sampled_from([0.0, 0.1, 0.5]),
    retention_s=st.sampled_from([30.0, 1800.0]),
    resume_timeout_s=st.sampled_from([20.0, 400.0]),
)


def play(course: Course, events: list[tuple[str, int, int]]) -> None:
    for number, (event, pick, size) in enumerate(events):
        key = KEYS[pick % len(KEYS)]
        if event == "arrive":
            course.arrive(key, size, pick % 3 * 50)
        elif event == "anonymous":
            course.arrive(Key("", number=number + 1), size)
        elif event == "tick":
            course.tick(course.settings.interval_s)
        elif event == "wait":
            course.tick(size / 40)
        elif event == "final":
            course.final(key)
        elif event == "leave" and course.waiting:
            course.finish(list(course.waiting)[pick % len(course.waiting)])
        elif event in ("finish", "grow") and course.running:
            turn = list(course.running)[pick % len(course.running)]
            if event == "finish":
                course.finish(turn, turn.prompt + size % 500)
            else:
                course.scheduler.progressed(turn, size)
                course.check([])


@settings(max_examples=150, deadline=None)
@given(EVENTS, SETTINGS)
def test_promises_hold_in_every_course(events: list[tuple[str, int, int]], chosen: AdmissionSettings) -> None:
    play(Course(chosen), events)


@settings(max_examples=60, deadline=None)
@given(EVENTS, SETTINGS)
def test_everyone_runs_when_others_finish(events: list[tuple[str, int, int]], chosen: AdmissionSettings) -> None:
    """With no new arrivals: one tick after a hold for each that waits is enough, long before the timeout."""
    course = Course(chosen)
    play(course, events)
    patience = chosen.acting_hold_s + chosen.interval_s
    started, waiters = course.now, len(course.waiting)
    for _ in range(waiters + 1):
        if not course.waiting:
            break
        for turn in list(course.running):
            course.finish(turn)
        course.tick(patience)
    assert not course.waiting
    assert course.now - started <= (waiters + 1) * patience


@settings(max_examples=60, deadline=None)
@given(EVENTS, SETTINGS)
def test_everyone_runs_by_the_timeout_even_when_nobody_finishes(
    events: list[tuple[str, int, int]], chosen: AdmissionSettings
) -> None:
    course = Course(chosen)
    play(course, events)
    arrived = {turn: turn.arrived for turn in course.waiting}
    end = course.now + chosen.resume_timeout_s + chosen.interval_s
    while course.waiting and course.now < end:
        course.tick(min(chosen.interval_s, chosen.resume_timeout_s))
    assert not course.waiting
    assert all(turn.admitted is not None for turn in arrived)


def test_nothing_is_left_of_a_long_run() -> None:
    """5,000 turns of 200 sessions and of requests without one: in the end the scheduler holds nothing."""
    rng = random.Random(7)
    course = Course(AdmissionSettings(retention_s=600))
    in_flight = course.in_flight
    for number in range(5_000):
        course.now += rng.expovariate(2)
        key = Key(f"s{rng.randrange(200)}") if rng.random() < 0.9 else Key("", number=number + 1)
        if not in_flight(key):
            turn, _ = course.scheduler.arrive(key, rng.randrange(1, 1500))
            (course.waiting if turn.admitted is None else course.running)[turn] = key
        while len(course.running) > 4 or (course.running and rng.random() < 0.5):
            turn = rng.choice(list(course.running))
            course.scheduler.finished(turn)
            del course.running[turn]
            for other in [other for other in course.waiting if other.admitted is not None]:
                course.running[other] = course.waiting.pop(other)
        if number % 10 == 0:
            course.scheduler.tick()
            for other in [other for other in course.waiting if other.admitted is not None]:
                course.running[other] = course.waiting.pop(other)
    for turn in [*course.waiting, *course.running]:
        course.scheduler.finished(turn)
    course.now += 600
    course.scheduler.tick()
    assert course.scheduler.programs() == []
    assert course.scheduler.used == (0, 0)
    assert all(not held for name, held in vars(course.scheduler).items() if isinstance(held, (dict, list))), "a leak"
