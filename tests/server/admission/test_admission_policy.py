"""Thresholds and orders of admission, one by one, on a clock that the test moves.

A block has one token and the buffer is off, so that tokens are shares: the capacity is 1000 tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgellm.cache import PrefixCache
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.errors import ConfigError
from edgellm.server.admission.budget import Budget, Need
from edgellm.server.admission.policy import Scheduler
from edgellm.server.admission.program import Decision, Key, Turn
from edgellm.server.admission.settings import AdmissionSettings

BUDGET = Budget(block_tokens=1, block_bytes=10, total_blocks=1000, snapshot_bytes=7, total_snapshots=10_000)
SETTINGS = AdmissionSettings(buffer_tokens=0)


class Desk:
    """A scheduler with a clock, by names of sessions."""

    def __init__(self, budget: Budget = BUDGET, **changes: float) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(budget, replace(SETTINGS, **changes), lambda: self.now)  # type: ignore[arg-type]
        self.said: list[Decision] = []

    def arrive(self, name: str, tokens: int, expected: int = 0) -> Turn:
        turn, self.said = self.scheduler.arrive(Key(name), tokens, expected)
        return turn

    def finish(self, turn: Turn, tokens: int | None = None) -> None:
        self.said = self.scheduler.finished(turn, tokens)

    def acting(self, **tokens: int) -> None:
        """Sessions that had a turn, in this order, a millisecond apart."""
        for name, count in tokens.items():
            turn = self.arrive(name, count)
            assert turn.admitted is not None
            self.finish(turn)
            self.now += 0.001

    def tick(self, after: float = 5.0) -> None:
        self.now += after
        self.said = self.scheduler.tick()

    def told(self, action: str) -> list[str]:
        return [decision.session_id for decision in self.said if decision.action == action]

    def phases(self) -> dict[str, str]:
        return {row.key.session_id: row.phase for row in self.scheduler.programs()}


def test_a_session_goes_through_its_phases() -> None:
    desk = Desk()
    turn = desk.arrive("a", 300)
    assert turn.admitted == 0.0
    assert desk.told("admit") == ["a"]
    assert desk.phases() == {"a": "reasoning"}
    assert desk.scheduler.used == Need(300, 3)
    desk.finish(turn, 350)
    assert desk.phases() == {"a": "acting"}
    assert desk.scheduler.used == Need(350, 3)
    turn = desk.arrive("a", 400)
    assert turn.admitted is not None
    desk.finish(turn)
    assert desk.told("forget") == []
    desk.said = desk.scheduler.final(Key("a"))
    assert desk.told("forget") == ["a"]
    assert desk.phases() == {}
    assert desk.scheduler.used == Need(0, 0)


@pytest.mark.parametrize(("tokens", "admitted"), [(649, True), (650, True), (651, False)])
def test_a_new_session_is_admitted_up_to_the_pause_threshold(tokens: int, admitted: bool) -> None:
    desk = Desk()
    desk.arrive("a", 300)
    assert (desk.arrive("b", tokens).admitted is not None) is admitted
    assert desk.told("queue") == ([] if admitted else ["b"])


def test_buffer_expected_output_and_whole_blocks_count() -> None:
    desk = Desk(replace(BUDGET, block_tokens=64, total_blocks=16), buffer_tokens=100)
    turn = desk.arrive("a", 60, 10)
    assert desk.scheduler.used.blocks == 3, "170 tokens: rounded up"
    desk.scheduler.progressed(turn, 33)
    assert desk.scheduler.used.blocks == 4, "193 tokens"
    desk.finish(turn)
    assert desk.scheduler.used.blocks == 3, "193 tokens: rounded down between turns"


def test_snapshots_may_be_what_is_scarce() -> None:
    desk = Desk(replace(BUDGET, total_snapshots=10))
    turns = [desk.arrive(name, 1) for name in "abcd"]
    assert [turn.admitted is not None for turn in turns] == [True, True, True, False]
    assert desk.scheduler.utilisation == 0.9
    assert desk.scheduler.budget.bytes(desk.scheduler.used) == 3 * 10 + 9 * 7


def test_a_new_session_does_not_pass_one_that_waits() -> None:
    desk = Desk()
    desk.arrive("a", 600)
    assert desk.arrive("b", 500).admitted is None
    assert desk.arrive("c", 300).admitted is None, "it would fit into 950, but not into the 850 of those that waited"


def test_an_active_session_is_never_held() -> None:
    desk = Desk()
    desk.acting(a=300)
    desk.arrive("b", 600)
    assert desk.arrive("a", 900).admitted is not None
    assert desk.scheduler.utilisation == 1.5
    assert desk.arrive("a", 100).admitted is not None, "a second request at the same time"
    assert desk.scheduler.used.blocks == 1600, "both are counted"


@pytest.mark.parametrize(("grown", "paused"), [(350, []), (351, ["b"])])
def test_above_the_threshold_the_smallest_acting_go_first_until_the_target(grown: int, paused: list[str]) -> None:
    desk = Desk()
    desk.acting(a=160, b=155, c=165, e=120)
    desk.acting(e=120)
    desk.scheduler.final(Key("e"))
    desk.acting(d=120)
    desk.arrive("d", 470 if paused == [] else 471)
    assert desk.told("pause") == paused
    assert desk.scheduler.used.blocks == 480 + 120 + grown - 155 * len(paused)


def test_pausing_takes_as_many_as_the_target_needs_in_ascending_order() -> None:
    desk = Desk()
    desk.acting(a=100, b=50, c=300, d=200)
    desk.arrive("d", 600)
    assert desk.told("pause") == ["b", "a", "c"]
    assert desk.scheduler.used.blocks == 600


def test_running_programs_are_marked_smallest_first_and_paused_when_their_turn_is_over() -> None:
    desk = Desk()
    turns = {name: desk.arrive(name, tokens) for name, tokens in (("a", 300), ("b", 250), ("c", 100))}
    desk.scheduler.progressed(turns["a"], 500)
    desk.tick()
    assert desk.told("pause") == []
    assert desk.told("mark") == ["c", "b"], "1150 less 100 is still above 800, less 250 more is 800"
    assert set(desk.phases().values()) == {"reasoning"}
    desk.finish(turns["c"])
    assert desk.told("pause") == ["c"]
    assert desk.phases()["c"] == "paused"
    desk.finish(turns["a"], 300)
    assert desk.told("unmark") == ["b"], "what remains is below the target"
    desk.finish(turns["b"])
    assert desk.phases() == {"a": "acting", "b": "acting", "c": "paused"}


def test_the_last_active_program_is_left_alone_unless_one_waits() -> None:
    desk = Desk()
    turn = desk.arrive("a", 2000)
    assert turn.admitted is not None, "larger than everything, but nothing runs"
    assert desk.told("resume") == ["a"]
    desk.tick()
    assert desk.said == []
    desk.finish(turn)
    assert desk.said == []
    turn = desk.arrive("a", 2100)
    other = desk.arrive("b", 100)
    assert other.admitted is None
    assert desk.told("mark") == ["a"]
    desk.finish(turn)
    assert desk.told("pause") == ["a"]
    assert other.admitted is not None
    again = desk.arrive("a", 2200)
    assert again.admitted is None, "too large to fit beside anything: it waits until nothing runs"
    desk.finish(other)
    assert again.admitted is not None


@pytest.mark.parametrize(("left", "resumed"), [(600, True), (601, False)])
def test_a_paused_program_comes_back_below_the_ceiling(left: int, resumed: bool) -> None:
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(a=250, b=left)
    b = desk.arrive("b", 800)
    assert desk.told("pause") == ["a"]
    turn = desk.arrive("a", 250)
    assert turn.paused
    assert turn.admitted is None
    assert desk.told("queue") == ["a"]
    desk.finish(b, left)
    assert (turn.admitted is not None) is resumed
    assert turn.priority == (1 if resumed else 0)


def test_waiting_order() -> None:
    """Paused programs before new ones, the smaller first; what is larger than the ceiling last."""
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(p=300, q=200, r=250)
    running = desk.arrive("r", 2000)
    assert desk.told("pause") == ["q", "p"]
    waiting = {name: desk.arrive(name, tokens) for name, tokens in (("n", 20), ("m", 10), ("big", 900))}
    waiting |= {name: desk.arrive(name, tokens) for name, tokens in (("p", 300), ("q", 200))}
    assert all(turn.admitted is None for turn in waiting.values())
    desk.finish(running, 320)
    assert desk.told("unmark") == ["r"], "there is room enough now"
    assert desk.told("resume") == ["q", "p", "m", "n"]
    for name in "qpmn":
        assert waiting["big"].admitted is None
        desk.finish(waiting[name])
    assert waiting["big"].admitted is not None, "nothing runs"


def test_equal_programs_come_back_in_the_order_of_their_pause() -> None:
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(a=200, b=200, x=400)
    running = desk.arrive("x", 560)
    assert desk.told("pause") == ["a"]
    desk.scheduler.progressed(running, 240)
    desk.tick()
    assert desk.told("pause") == ["b"]
    late, early = desk.arrive("b", 200), desk.arrive("a", 200)
    desk.finish(running, 400)
    assert desk.told("resume") == ["a", "b"]
    assert late.admitted == early.admitted == desk.now


def test_the_first_that_does_not_fit_holds_up_those_behind_it() -> None:
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(a=200, x=600)
    x = desk.arrive("x", 900)
    assert desk.told("pause") == ["a"]
    a, new = desk.arrive("a", 400), desk.arrive("new", 10)
    desk.finish(x, 600)
    assert desk.scheduler.used.blocks == 600
    assert a.admitted is None
    assert new.admitted is None, "10 would fit, but would starve a"


def test_a_program_without_a_turn_comes_back_at_a_tick_when_nobody_waits() -> None:
    desk = Desk()
    desk.acting(a=250, b=600)
    b = desk.arrive("b", 800)
    desk.finish(b, 500)
    assert desk.phases()["a"] == "paused", "no hurry: only a tick brings it back"
    desk.tick()
    assert desk.told("resume") == ["a"]
    assert desk.phases()["a"] == "acting"


def test_a_program_paused_in_a_tick_is_not_resumed_in_it() -> None:
    desk = Desk()
    desk.acting(a=40, b=500)
    b = desk.arrive("b", 900)
    desk.scheduler.progressed(b, 51)
    desk.tick()
    assert desk.told("pause") == ["a"]
    assert desk.told("resume") == []


def test_acting_programs_make_room_after_their_hold_the_longest_first() -> None:
    desk = Desk(idle_hold_s=5.0)
    desk.acting(a=200, b=300, c=400)
    turn = desk.arrive("new", 300)
    assert turn.admitted is None
    desk.tick(4.9)
    assert turn.admitted is None
    desk.tick(0.2)
    assert desk.told("pause") == ["a", "b"], "as many as needed, although c is large enough alone"
    assert desk.told("resume") == ["new"]
    assert desk.scheduler.used.blocks == 700


def test_nothing_is_displaced_when_it_would_not_be_enough() -> None:
    desk = Desk()
    running = desk.arrive("x", 600)
    desk.acting(a=200)
    turn = desk.arrive("new", 500)
    desk.tick(10)
    assert turn.admitted is None
    assert desk.told("pause") == []
    desk.finish(running)
    desk.tick(10)
    assert turn.admitted is not None


def test_a_turn_that_waited_for_the_timeout_runs() -> None:
    desk = Desk(resume_timeout_s=20)
    desk.arrive("a", 900)
    turn = desk.arrive("b", 800)
    desk.tick(19.9)
    assert turn.admitted is None
    desk.tick(0.1)
    assert turn.admitted is not None
    assert desk.told("force") == ["b"]
    assert desk.told("mark") == ["b"]
    assert desk.scheduler.utilisation == 1.7


def test_soft_demotion_in_its_band() -> None:
    desk = Desk()
    desk.acting(a=400, b=399)
    desk.tick()
    assert desk.told("demote") == []
    desk.finish(desk.arrive("b", 400))
    desk.tick()
    assert desk.told("demote") == ["a", "b"]
    assert desk.arrive("a", 400).priority == -2
    assert desk.arrive("a", 10).priority == 0, "only the next turn"
    assert desk.arrive("new", 20).priority == 0
    desk.now += 7.5
    assert desk.arrive("b", 401).priority == 0, "it is over"
    desk = Desk()
    desk.acting(a=475, b=474)
    desk.arrive("b", 475)
    desk.tick()
    assert desk.told("demote") == [], "at the threshold it is no longer soft"


def test_a_demotion_is_told_once_while_it_lasts() -> None:
    desk = Desk()
    desk.acting(a=800)
    desk.tick()
    assert desk.told("demote") == ["a"]
    desk.tick()
    assert desk.told("demote") == []


def test_final_with_a_turn_in_flight_waits_for_it_and_a_later_turn_takes_it_back() -> None:
    desk = Desk()
    turn = desk.arrive("a", 100)
    assert desk.scheduler.final(Key("a")) == []
    desk.finish(turn)
    assert desk.told("forget") == ["a"]
    first = desk.arrive("a", 100)
    desk.scheduler.final(Key("a"))
    second = desk.arrive("a", 100)
    desk.finish(first)
    desk.finish(second)
    assert desk.phases() == {"a": "acting"}
    assert desk.scheduler.final(Key("nobody")) == []


def test_a_final_session_makes_room_at_once() -> None:
    desk = Desk()
    desk.acting(a=900)
    turn = desk.arrive("b", 500)
    assert turn.admitted is None
    desk.said = desk.scheduler.final(Key("a"))
    assert turn.admitted is not None


def test_who_leaves_while_waiting_leaves_nothing() -> None:
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(a=100, b=600)
    b = desk.arrive("b", 900)
    assert desk.told("pause") == ["a"]
    new, old = desk.arrive("new", 700), desk.arrive("a", 300)
    desk.finish(new)
    assert desk.told("leave") == ["new"]
    assert desk.told("forget") == ["new"]
    desk.finish(old)
    assert desk.told("leave") == ["a"]
    assert desk.phases() == {"a": "paused", "b": "reasoning"}
    desk.finish(b)
    assert desk.scheduler.used.blocks == 900


def test_retention_forgets_idle_programs_only() -> None:
    desk = Desk(retention_s=60, acting_hold_s=1e6, idle_hold_s=1e6)
    desk.acting(a=100, b=600)
    desk.arrive("b", 900)
    desk.tick(59)
    assert desk.told("forget") == []
    desk.tick(1)
    assert desk.told("forget") == ["a"], "paused, and 60 s without a turn"
    desk.tick(1000)
    assert desk.phases() == {"b": "reasoning"}


def test_beyond_the_limit_the_longest_idle_is_forgotten() -> None:
    desk = Desk(max_sessions=2)
    desk.acting(a=1, b=1, a2=1)
    assert set(desk.phases()) == {"b", "a2"}
    desk.arrive("b", 1)
    desk.arrive("a2", 1)
    desk.arrive("c", 1)
    assert len(desk.phases()) == 3, "turns in flight are never forgotten"


def test_a_request_without_session_is_a_program_of_its_own() -> None:
    desk = Desk()
    turn, _ = desk.scheduler.arrive(Key("", number=1), 100)
    other, _ = desk.scheduler.arrive(Key("", number=2), 100)
    assert desk.scheduler.used.blocks == 200
    desk.finish(turn)
    assert desk.scheduler.used.blocks == 100
    desk.finish(other)
    assert desk.scheduler.programs() == []


def test_the_same_session_of_another_tenant_is_another_program() -> None:
    desk = Desk()
    desk.scheduler.arrive(Key("a", "x"), 100)
    desk.scheduler.arrive(Key("a", "y"), 100)
    assert len(desk.scheduler.programs()) == 2


def test_parallel_requests_leave_the_larger_behind() -> None:
    desk = Desk()
    main, title = desk.arrive("a", 500), desk.arrive("a", 20)
    desk.finish(main, 510)
    desk.finish(title, 30)
    assert desk.scheduler.used.blocks == 510
    desk.finish(desk.arrive("a", 100), 110)
    assert desk.scheduler.used.blocks == 110, "a compacted conversation is small again"


def test_acting_tokens_may_weigh_less() -> None:
    desk = Desk(acting_token_weight=0.5)
    desk.acting(a=400)
    assert desk.scheduler.used.blocks == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pause_threshold", 0),
        ("pause_threshold", 1.01),
        ("pause_threshold", float("nan")),
        ("pause_target", 0.96),
        ("pause_target", -1),
        ("soft_demote_threshold", 0.951),
        ("resume_hysteresis", 0.95),
        ("resume_hysteresis", -0.1),
        ("resume_timeout_s", 0),
        ("interval_s", float("inf")),
        ("retention_s", -1),
        ("acting_token_weight", 1.1),
        ("acting_hold_s", -1),
        ("buffer_tokens", -1),
        ("buffer_tokens", 1.5),
        ("snapshots_per_session", 0),
        ("max_sessions", 0),
        ("max_waiting", True),
        ("soft_demote_priority", "low"),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        AdmissionSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["block_tokens", "total_blocks", "total_snapshots"])
def test_a_budget_without_a_cache_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        replace(BUDGET, **{name: 0})


@pytest.mark.parametrize(("blocks", "snapshots"), [(10, 4), (10, 0), (0, 4)])
def test_the_budget_of_an_engine(blocks: int, snapshots: int) -> None:
    executor = ScriptedExecutor(block_tokens=64, block_bytes=1000, snapshot_bytes=300)
    cache = PrefixCache(executor, block_budget_bytes=blocks * 1000 + 999, snapshot_budget_bytes=snapshots * 300)
    if blocks and snapshots:
        assert Budget.of_cache(executor.info, cache.stats()) == Budget(64, 1000, 10, 300, 4)
    else:
        with pytest.raises(ConfigError, match="admission needs a cache"):
            Budget.of_cache(executor.info, cache.stats())


def test_a_turn_that_waited_long_goes_first_and_takes_the_place_of_one_that_acts() -> None:
    desk = Desk(acting_hold_s=1e6, idle_hold_s=1e6, patience_s=60.0)
    desk.acting(a=400, b=400)
    a, b = desk.arrive("a", 400), desk.arrive("b", 400)
    new = desk.arrive("new", 300)
    assert new.admitted is None
    desk.finish(a, 400)
    assert new.admitted is None, "a keeps its place"
    desk.now += 61.0
    late = desk.arrive("late", 10)
    assert new.admitted is not None, "whoever acts makes room now"
    assert desk.told("pause") == ["a"]
    assert late.admitted is None or late.admitted >= new.admitted
    desk.finish(b, 400)
    desk.finish(new, 300)


def test_a_turn_does_not_wait_long_for_a_place_that_nobody_uses() -> None:
    desk = Desk(acting_hold_s=60.0, idle_hold_s=1.0)
    desk.acting(a=400, b=400)
    b = desk.arrive("b", 400)
    new = desk.arrive("new", 300)
    desk.tick(2.0)
    assert new.admitted is None, "b runs: the engine is not idle, and a may come back any moment"
    desk.finish(b, 400)
    assert new.admitted is not None, "a acted for longer than a second, and nothing runs"
    assert desk.told("pause") == ["a"]
