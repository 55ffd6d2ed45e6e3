"""Readers of a mirror see exactly what is cached, at every point, wherever and whenever they begin."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.server.kv_events.ledger import Behind, Feed
from edgellm.server.kv_events.mirror import KvMirror
from edgellm.server.kv_events.trtllm import event_json

WINDOW = 4096
words = st.lists(st.integers(0, 2), min_size=1, max_size=14)
turns = st.tuples(
    st.just("turn"), words, st.integers(0, 14), st.sampled_from(["", "", "s"]), st.none() | st.integers(0, 99)
)
others = st.sampled_from(["clear", "late", "time"]) | st.tuples(st.just("retain"), words, st.integers(0, 100))
operations = st.lists(turns | others, min_size=1, max_size=16)


def take(reader, follower, at_once: int = 3) -> None:
    while events := reader.take(at_once):
        for numbered in events:
            follower.feed(json.dumps(event_json(numbered, WINDOW)))


def operate(talk, operation) -> None:
    if operation == "clear":
        talk.cache.clear()
    elif operation == "time":
        talk.now += 5
    elif operation[0] == "retain":
        talk.cache.retain(operation[1], priority=operation[2], duration_s=4)
    elif operation[0] == "turn":
        _, tokens, stop, salt, priority = operation
        talk.turn(tokens, stop=min(stop, len(tokens)), salt=salt, priority=priority)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=operations, blocks=st.integers(2, 12), block=st.integers(1, 4), before=words)
def test_every_reader_follows_exactly(conversations, trt_reader, operations, blocks, block, before) -> None:
    talk = conversations(block=block, blocks=blocks, snapshots=4)
    talk.turn(before)  # the mirror begins with a cache that is not empty
    mirror = KvMirror(talk.cache)
    followers = [(mirror.reader(snapshots=flag), trt_reader(), flag) for flag in (False, True)]
    try:
        for operation in operations:
            operate(talk, operation)
            assert mirror.settle()
            if operation == "late":
                flag = len(followers) % 2 == 0
                followers.append((mirror.reader(snapshots=flag), trt_reader(), flag))
            for reader, follower, flag in followers:
                take(reader, follower)
                assert follower.resets == ["start"]
                assert follower.full(block) == talk.full(salted=True)
                assert follower.blocks.keys() == talk.truth().keys()
                assert follower.snapshots == (talk.snapshots() if flag else {})
                assert reader.place == mirror.reader(snapshots=flag).place
        assert len({follower.expected for _, follower, flag in followers if flag}) == 1
        assert len({follower.expected for _, follower, flag in followers if not flag}) == 1
    finally:
        mirror.close()


def test_reading_on_where_one_left_off(conversations, mirror_of, trt_reader) -> None:
    talk = conversations()
    mirror = mirror_of(talk.cache)
    talk.turn(range(10))
    assert mirror.settle()
    follower = trt_reader()
    for numbered in mirror.reader().take(100):
        follower.feed(json.dumps(event_json(numbered, WINDOW)))
        place = numbered.resume
    talk.turn(range(30))
    assert mirror.settle()
    reader = mirror.reader(resume=place)
    assert reader.reset is None
    take(reader, follower)
    assert follower.resets == ["start"]
    assert follower.full(4) == talk.full(salted=True)
    again = mirror.reader(resume=reader.place)
    assert again.reset is None
    assert again.take(100) == []


def test_a_picture_can_be_resumed_only_when_it_is_whole(conversations, mirror_of) -> None:
    talk = conversations()
    talk.turn(range(40))
    mirror = mirror_of(talk.cache)
    shown = mirror.reader().take(100)
    assert [numbered.resume for numbered in shown[:-1]] == [None] * (len(shown) - 1)
    assert shown[-1].resume is not None
    assert [numbered.reset for numbered in shown] == ["start"] + [None] * (len(shown) - 1)


@pytest.mark.parametrize(
    "place", ["", "x", "0", "deadbeef.0", "{life}.", "{life}.-1", "{life}.99", "{life}s.0", "{life}.²"]
)
def test_a_place_that_is_none_here_gives_a_flagged_picture(conversations, mirror_of, place: str) -> None:
    mirror = mirror_of(conversations().cache)
    life = mirror.reader().place.partition(".")[0]
    assert mirror.reader(resume=place.format(life=life)).reset == "gap"


def test_a_gap_is_flagged_and_bridged(conversations, mirror_of, trt_reader) -> None:
    talk = conversations()
    mirror = mirror_of(talk.cache, keep=8)
    slow, follower = mirror.reader(), trt_reader()
    take(slow, follower)
    talk.turn(range(100))
    assert mirror.settle()
    with pytest.raises(Behind):
        slow.take(1)
    fresh = mirror.reader(resume=slow.place)
    assert fresh.reset == "gap"
    take(fresh, follower)
    assert follower.resets == ["start", "gap"]
    assert follower.full(4) == talk.full(salted=True)
    assert len(follower.blocks) == 25


def test_memory_is_bounded(conversations, mirror_of) -> None:
    talk = conversations(blocks=6)
    mirror = mirror_of(talk.cache, keep=16)
    for start in range(0, 4000, 20):
        talk.turn(range(start, start + 20))
    assert mirror.settle()
    ledger = mirror._ledger
    assert len(ledger._items) == len(talk.truth()) + len(talk.snapshots())
    assert len(ledger.blocks._ring) == len(ledger.everything._ring) == 16
    assert ledger.blocks.next > 1000


def test_a_reader_that_left_holds_nothing(conversations, mirror_of) -> None:
    mirror = mirror_of(conversations().cache)
    reader = mirror.reader()
    end = mirror.on_change(lambda: None)
    gone = weakref.ref(reader)
    del reader
    end()
    gc.collect()
    assert gone() is None
    assert not mirror._bells


def test_a_bell_that_fails_is_forgotten_and_disturbs_nobody(conversations, mirror_of) -> None:
    talk = conversations()
    mirror = mirror_of(talk.cache)
    rung: list[int] = []

    def broken() -> None:
        raise RuntimeError("event loop is closed")

    mirror.on_change(broken)
    mirror.on_change(lambda: rung.append(1))
    talk.turn(range(10))
    assert mirror.settle()
    mirror.close()
    assert rung
    assert len(mirror._bells) == 1


def test_closing_ends_the_subscription_and_tells_readers(conversations) -> None:
    talk = conversations()
    mirror = KvMirror(talk.cache)
    reader = mirror.reader()
    talk.turn(range(10))
    mirror.close()
    mirror.close()
    assert mirror.closed
    assert not talk.cache.events.active
    assert len(reader.take(100)) + len(reader.take(100)) == 1 + 3  # `created` and three blocks


def test_an_event_that_was_missed_stops_the_mirror_instead_of_lying(conversations, caplog) -> None:
    talk = conversations()
    mirror = KvMirror(talk.cache)
    talk.turn(range(8))
    assert mirror.settle()
    mirror._ledger._items.clear()
    talk.cache.clear()
    mirror._thread.join(5)
    assert mirror.closed
    assert "no longer followed" in caplog.text
    mirror.close()


def test_numbers_wrap_around_the_ring() -> None:
    feed = Feed(3)
    for number in range(10):
        feed.add(number)  # type: ignore[arg-type]
        assert feed.take(feed.first, 99) == list(range(max(0, number - 2), number + 1))
    assert feed.take(8, 1) == [8]
    assert feed.take(10, 5) == []
    with pytest.raises(Behind):
        feed.take(6, 1)
