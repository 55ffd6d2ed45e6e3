"""A subscriber can follow the cache from its events alone."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.cache import Created, EventBus, Removed, Stored, Updated


class Mirror:
    """What a subscriber knows."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, int], Stored] = {}
        self.priorities: dict[tuple[str, int], int] = {}
        self.numbers: list[int] = []
        self.created: Created | None = None

    def __call__(self, number: int, event: object) -> None:
        self.numbers.append(number)
        if isinstance(event, Created):
            assert self.created is None
            self.created = event
        elif isinstance(event, Stored):
            key = (event.item, event.hash)
            assert key not in self.items
            assert event.parent_hash is None or ("block", event.parent_hash) in self.items
            assert (event.parent_hash is None) == (event.start < 4 if event.item == "block" else event.start <= 4)
            if event.item == "block":
                assert len(event.tokens) == event.end - event.start
            self.items[key] = event
            self.priorities[key] = event.priority
        elif isinstance(event, Removed):
            del self.items[event.item, event.hash], self.priorities[event.item, event.hash]
            if event.item == "block":
                assert not any(other.parent_hash == event.hash for other in self.items.values())
        else:
            assert isinstance(event, Updated)
            assert self.priorities[event.item, event.hash] == event.old_priority
            self.priorities[event.item, event.hash] = event.new_priority

    def tokens(self, event: Stored) -> tuple[int, ...]:
        above = () if event.parent_hash is None else self.tokens(self.items["block", event.parent_hash])
        return above + event.tokens


prompts = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=20), st.sampled_from(["", "s"]), st.none() | st.integers(0, 99)
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=prompts)
def test_events_tell_everything(make_engine, prompts) -> None:
    mirror, bus = Mirror(), EventBus()
    bus.subscribe(mirror)
    engine = make_engine(block=4, blocks=9, snapshots=4, events=bus)
    assert mirror.created == Created(4, 9, 4)
    for prompt, salt, priority in prompts:
        engine.turn(prompt, salt=salt, priority=priority, every=3)
        blocks = [event for event in mirror.items.values() if event.item == "block"]
        held = [(kept.tokens[kept.start :], kept.start) for kept in engine.executor.blocks.values()]
        assert sorted((event.tokens, event.start) for event in blocks) == sorted(held)
        assert {mirror.tokens(event) for event in blocks} == {kept.tokens for kept in engine.executor.blocks.values()}
        assert {event.end for event in mirror.items.values() if event.item == "snapshot"} == {
            len(kept.tokens) for kept in engine.executor.snapshots.values()
        }
        late = Mirror()
        for number, event in enumerate(engine.cache.describe()):
            late(number, event)
        assert late.items.keys() == mirror.items.keys()
        assert late.priorities == mirror.priorities
    engine.cache.clear()
    assert not mirror.items
    assert mirror.numbers == list(range(len(mirror.numbers)))


def test_hashes_depend_on_salt_and_tokens_only(make_engine) -> None:
    seen: list[dict[int, int]] = []
    for salt in ("", "", "x"):
        bus, events = EventBus(), []
        bus.subscribe(lambda _, event, events=events: events.append(event))
        make_engine(events=bus).turn(range(10), salt=salt)
        seen.append({e.end: e.hash for e in events if isinstance(e, Stored) and e.item == "block"})
        assert {e.namespace == 0 for e in events if isinstance(e, Stored)} == {salt == ""}
    assert seen[0] == seen[1]
    assert not set(seen[0].values()) & set(seen[2].values())


def test_a_failing_subscriber_is_dropped(make_engine, caplog) -> None:
    bus, seen = EventBus(), []

    def bad(number: int, event: object) -> None:
        raise RuntimeError("broken pipe")

    bus.subscribe(bad)
    end = bus.subscribe(lambda number, event: seen.append(number))
    engine = make_engine(events=bus)
    engine.turn(range(10))
    assert seen == list(range(len(seen)))
    assert caplog.text.count("is dropped") == 1
    end()
    assert not bus.active
    engine.turn(range(20))
    assert seen == list(range(len(seen)))
