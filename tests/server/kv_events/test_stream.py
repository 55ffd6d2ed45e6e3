"""GET /v1/kv/events on a real server: exact, resumable, bounded, and in nobody's way."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from edgellm.server.errors import install_error_handlers
from edgellm.server.gate import Gate
from edgellm.server.kv_events.mirror import KvMirror
from edgellm.server.kv_events.stream import MOST_READERS, PATH, add_kv_events
from edgellm.server.load import Load
from edgellm.server.run import listen, make_server
from edgellm.server.settings import ServerSettings

WINDOW = 4096
WAIT_S = 10.0


class Service:
    """The route on a real socket, over a cache that the test drives."""

    def __init__(self, talk: Any, mirror: KvMirror, settings: ServerSettings) -> None:
        self.talk, self.mirror = talk, mirror
        self.load = Load(settings.max_in_flight)
        app = FastAPI()
        app.state.load = self.load
        install_error_handlers(app, settings.retry_after_s)
        add_kv_events(app, mirror, settings, self.load, window_size=WINDOW)
        app.add_middleware(Gate, settings=settings, load=self.load)
        sock = listen(settings)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # of its connections: a slow reader shows soon
        self.port = sock.getsockname()[1]
        self.server = make_server(app, settings)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [sock]}, daemon=True)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.005)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WAIT_S)

    def poll(self, **query: Any) -> tuple[list[dict[str, Any]], str]:
        answer = self.http.get(PATH, params={"poll": "true", **query})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json(), answer.headers["last-event-id"]

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def service(conversations: Any, mirror_of: Any) -> Iterator[Callable[..., Service]]:
    """`service(blocks=…, keep=…, before=…, **server_settings)`."""
    made: list[Service] = []

    def make(*, blocks: int = 1000, keep: int = 4096, before: Any = (), **settings: Any) -> Service:
        talk = conversations(blocks=blocks)
        if before:
            talk.turn(before)
        chosen = replace(ServerSettings(model="tiny", port=0, shutdown_grace_s=WAIT_S), **settings)
        made.append(Service(talk, mirror_of(talk.cache, keep=keep), chosen))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Stream:
    """One reader over HTTP, which follows what it reads."""

    def __init__(self, service: Service, follower: Any, **headers: str) -> None:
        self.follower = follower
        self.place = ""
        query = headers.pop("query", "")
        self._context = service.http.stream("GET", f"{PATH}?{query}", headers=headers)
        self.answer = self._context.__enter__()
        self._lines = self.answer.iter_lines()
        self.pings = 0

    def read(self, until: Callable[[], bool]) -> None:
        """Read events until `until()` holds."""
        while not until():
            self.event()

    def event(self) -> None:
        """Up to the next event; StopIteration at the end of the stream."""
        while not (line := next(self._lines)).startswith("data: "):
            if line.startswith("id: "):
                self.place = line.removeprefix("id: ")
            elif line.startswith(":"):
                self.pings += 1
            else:
                assert line == ""
        self.follower.feed(line.removeprefix("data: "))

    def close(self) -> None:
        self._context.__exit__(None, None, None)


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_a_picture_then_every_change(service, trt_reader) -> None:
    served = service(before=range(30))
    talk = served.talk
    stream = Stream(served, trt_reader())
    assert stream.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.answer.headers["cache-control"] == "no-cache"
    stream.read(lambda: stream.follower.full(4) == talk.full(salted=True))
    assert stream.follower.resets == ["start"]
    for operation in (lambda: talk.turn(range(5, 44), salt="s"), lambda: talk.turn(range(60)), talk.cache.clear):
        operation()
        stream.read(lambda: stream.follower.blocks.keys() == talk.truth().keys())
        assert stream.follower.full(4) == talk.full(salted=True)
    assert stream.follower.resets == ["start"]
    stream.close()


def test_a_salt_is_shown_as_a_number_only(service, trt_reader) -> None:
    served = service()
    served.talk.turn(range(8), salt="the-tenant")
    served.talk.turn(range(8))
    assert served.mirror.settle()
    events, _ = served.poll()
    assert "tenant" not in json.dumps(events)
    blocks = [block for event in events for block in event["data"].get("blocks", ())]
    salts = [block.get("cache_salt") for block in blocks]
    assert salts[2:] == [None, None]
    assert salts[0] == salts[1]
    assert len(salts[0]) == 16


def test_resuming_misses_and_doubles_nothing(service, trt_reader) -> None:
    served = service(before=range(9))
    stream = Stream(served, trt_reader())
    stream.read(lambda: bool(stream.place))
    stream.close()
    served.talk.turn(range(40))
    again = Stream(served, stream.follower, **{"last-event-id": stream.place})
    again.read(lambda: again.follower.full(4) == served.talk.full(salted=True))
    assert again.follower.resets == ["start"]
    again.close()


def test_a_gap_gives_a_fresh_picture_that_says_so(service, trt_reader) -> None:
    served = service(keep=4, before=range(9))
    stream = Stream(served, trt_reader())
    stream.read(lambda: bool(stream.place))
    stream.close()
    served.talk.turn(range(40))
    assert served.mirror.settle()
    again = Stream(served, stream.follower, **{"last-event-id": stream.place})
    again.read(lambda: again.follower.full(4) == served.talk.full(salted=True))
    assert again.follower.resets == ["start", "gap"]
    again.close()


def test_snapshots_are_told_when_asked_for(service, trt_reader) -> None:
    served = service(before=range(9))
    stream = Stream(served, trt_reader(), query="snapshots=true")
    stream.read(lambda: stream.follower.snapshots == served.talk.snapshots() != {})
    served.talk.cache.retain(range(9), priority=80)
    served.talk.cache.clear()
    stream.read(lambda: not stream.follower.snapshots and not stream.follower.blocks)
    stream.close()
    assert not any("snapshot" in json.dumps(event) for event in served.poll()[0])


def test_many_readers_see_the_same(service, trt_reader) -> None:
    served = service(before=range(30))
    streams = [Stream(served, trt_reader()) for _ in range(8)]
    served.talk.turn(range(50))
    for stream in streams:
        stream.read(lambda stream=stream: stream.follower.full(4) == served.talk.full(salted=True))
    assert len({stream.place for stream in streams}) == 1
    for stream in streams:
        stream.close()
    assert eventually(lambda: not served.mirror._bells), "readers that left hold nothing"


def test_no_more_readers_than_there_is_room_for(service, trt_reader, monkeypatch) -> None:
    monkeypatch.setattr("edgellm.server.kv_events.stream.MOST_READERS", 2)
    assert MOST_READERS > 2
    served = service()
    streams = [Stream(served, trt_reader()) for _ in range(2)]
    for stream in streams:
        stream.event()
    refused = served.http.get(PATH)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    streams[0].close()
    assert eventually(lambda: len(served.mirror._bells) == 1)
    assert served.http.get(PATH, params={"poll": "true"}).status_code == 200
    streams[1].close()


def test_a_quiet_stream_pings(service, trt_reader) -> None:
    served = service(ping_interval_s=0.05)
    stream = Stream(served, trt_reader())
    stream.event()
    served.talk.turn(range(8))
    stream.read(lambda: stream.follower.full(4) == served.talk.full(salted=True))
    threading.Timer(0.5, served.talk.cache.clear).start()
    stream.read(lambda: not stream.follower.blocks)
    assert stream.pings > 0
    stream.close()


def test_a_resumed_stream_with_nothing_new_answers_at_once(service, trt_reader) -> None:
    served = service(ping_interval_s=1000)
    _, place = served.poll()
    stream = Stream(served, trt_reader(), **{"last-event-id": place})
    assert stream.answer.status_code == 200
    assert next(stream._lines).startswith(":")
    stream.close()


def test_a_slow_reader_is_dropped_and_holds_up_nobody(service, trt_reader, caplog) -> None:
    served = service(keep=600, blocks=8000)
    slow = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S)
    slow.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert slow.recv(100).startswith(b"HTTP/1.1 200")
    stream = Stream(served, trt_reader())
    for start in range(60):
        served.talk.turn([start, *range(400)])
        cached = len(served.talk.truth())
        stream.read(lambda cached=cached: len(stream.follower.blocks) == cached)
    assert len(served.mirror._bells) == 2
    data = b""
    with suppress(ConnectionResetError):
        while piece := slow.recv(1 << 16):
            data += piece
    assert not data.endswith(b"0\r\n\r\n"), "it looks complete"
    assert eventually(lambda: len(served.mirror._bells) == 1)
    assert [record.message for record in caplog.records] == ["a reader of KV events was too slow and is dropped"]
    slow.close()
    stream.close()


def test_a_reader_that_takes_nothing_is_given_up(service) -> None:
    served = service(blocks=4000, write_timeout_s=0.3)
    for start in range(40):
        served.talk.turn([start, *range(400)])
    assert served.mirror.settle()
    stuck = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S)
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert eventually(lambda: bool(served.mirror._bells))
    assert eventually(lambda: not served.mirror._bells)
    stuck.close()


def test_a_stopping_server_ends_its_streams(service, trt_reader) -> None:
    served = service(before=range(9))
    stream = Stream(served, trt_reader())
    stream.read(lambda: bool(stream.place))
    served.server.should_exit = True
    with pytest.raises(StopIteration):  # complete: the last chunk came
        stream.read(lambda: False)


def test_streams_end_when_the_cache_is_followed_no_more(service, trt_reader) -> None:
    served = service(before=range(9))
    stream = Stream(served, trt_reader())
    stream.event()
    served.talk.turn(range(30))
    served.mirror.close()
    with pytest.raises(StopIteration):
        stream.read(lambda: False)
    assert stream.follower.full(4) == served.talk.full(salted=True)
    answer = served.http.get(PATH)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"


def test_polling(service, trt_reader) -> None:
    served = service(before=range(30))
    follower = trt_reader()

    def feed(events: list[dict[str, Any]]) -> None:
        for event in events:
            follower.feed(json.dumps(event))

    events, place = served.poll()
    feed(events)
    assert follower.full(4) == served.talk.full(salted=True)
    assert len(follower.blocks) == 8
    assert served.poll(last_event_id=place) == ([], place)
    threading.Timer(0.1, served.talk.cache.clear).start()
    while follower.blocks:
        events, place = served.poll(last_event_id=place, timeout_ms=5000)
        assert events, "it waited for the first event"
        feed(events)
    assert follower.resets == ["start"]
    assert not served.mirror._bells


def test_a_large_picture_is_one_array(service, trt_reader) -> None:
    served = service(blocks=3000)
    for start in range(20):
        served.talk.turn([start, *range(400)])
    assert served.mirror.settle()
    follower = trt_reader()
    events, place = served.poll()
    for event in events:
        follower.feed(json.dumps(event))
    assert len(follower.blocks) == len(served.talk.truth()) == len(events) - 1 > 2000
    assert served.poll(last_event_id=place) == ([], place)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("snapshots=1", "snapshots"),
        ("poll=yes", "poll"),
        ("timeout_ms=5", "timeout_ms"),
        ("poll=true&timeout_ms=-1", "timeout_ms"),
        ("poll=true&timeout_ms=60001", "timeout_ms"),
        ("poll=true&timeout_ms=1e3", "timeout_ms"),
        ("poll=true&timeout_ms=", "timeout_ms"),
        ("since=3", "since"),
    ],
)
def test_a_wrong_query_is_named(service, query: str, named: str) -> None:
    answer = service().http.get(f"{PATH}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named


def test_a_key_is_asked_for(service) -> None:
    served = service(api_keys=("secret",))
    assert served.http.get(PATH).status_code == 401
    answer = served.http.get(PATH, params={"poll": "true"}, headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 200


def test_the_engine_of_a_server(start, trt_reader) -> None:
    """Chats fill a real engine's cache; the readers of it know each block."""
    running = start()
    mirror = KvMirror(running.llm.engine.cache)
    try:
        follower, reader = trt_reader(), mirror.reader()
        for turn in range(3):
            assert running.post(messages=[{"role": "user", "content": f"{'word ' * 100}{turn}"}]).status_code == 200
        assert running.settled()
        assert mirror.settle()
        from edgellm.server.kv_events.trtllm import event_json

        while events := reader.take(7):
            for numbered in events:
                follower.feed(json.dumps(event_json(numbered, WINDOW)))
        cached = {event.hash for event in running.llm.engine.cache.describe()[1:] if event.item == "block"}
        assert follower.blocks.keys() == cached != set()
    finally:
        mirror.close()
