"""vLLM's wire: its readers know exactly the full blocks without a salt, live, late, and after a gap."""

from __future__ import annotations

import builtins
import importlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.errors import ConfigError
from edgellm.server.kv_events.mirror import KvMirror
from edgellm.server.kv_events.zmq_publisher import END, ZmqPublisher, ZmqSettings

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")
msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed")

ANY = "tcp://127.0.0.1:*"
FORMS = ("array", "map")


class Client:
    """Sockets of one subscriber."""

    def __init__(self, publisher: ZmqPublisher, form: str, *, topic: str = "") -> None:
        self.form, self.topic = form, topic.encode()
        self.context = zmq.Context()
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.setsockopt(zmq.RCVTIMEO, 10_000)
        self.replay.connect(publisher.replay_endpoint)
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVTIMEO, 10_000)
        self.sub.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.sub.connect(publisher.endpoint)

    def ask(self, start: int) -> list[tuple[bytes, bytes]]:
        """Batches from `start` on."""
        self.replay.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            delimiter, *frames = self.replay.recv_multipart()
            assert delimiter == b""
            if self.form == "map":
                topic = frames.pop(0)
                assert topic == (b"" if frames[0] == END else self.topic)
            number, batch = frames
            if number == END:
                assert batch == b""
                return batches
            batches.append((number, batch))

    def live(self) -> tuple[bytes, bytes]:
        topic, number, batch = self.sub.recv_multipart()
        assert topic == self.topic
        return number, batch

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def setting(mirror_of: Any, conversations: Any) -> Iterator[Any]:
    """`setting(form, blocks=…, keep=…, **settings)` gives a cache, its publisher and a client."""
    closing: list[Any] = []

    def make(form: str = "array", *, blocks: int = 1000, before: Any = (), keep: int = 1000, **options: Any) -> Any:
        talk = conversations(blocks=blocks)
        if before:
            talk.turn(before)
        chosen = ZmqSettings(**{"endpoint": ANY, "replay_endpoint": ANY, "form": form, **options})
        publisher = ZmqPublisher(mirror_of(talk.cache, keep=keep), chosen, talk.block)
        client = Client(publisher, form, topic=chosen.topic)
        closing.extend([client, publisher])
        return talk, publisher, client

    yield make
    for one in closing:
        one.close()


def follow(client: Client, reader: Any) -> None:
    for number, batch in client.ask(reader.expected or 0):
        reader.feed(number, batch)


words = st.lists(st.integers(0, 2), min_size=1, max_size=14)
turns = st.tuples(words, st.integers(0, 14), st.sampled_from(["", "", "s"]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(turns | st.just("clear"), min_size=1, max_size=12),
    blocks=st.integers(2, 10),
    block=st.integers(1, 4),
    form=st.sampled_from(FORMS),
    buffer_steps=st.integers(1, 6),
    before=words,
)
def test_what_is_told_is_what_is_cached(
    conversations, vllm_reader, operations, blocks, block, form, buffer_steps, before
) -> None:
    talk = conversations(block=block, blocks=blocks, snapshots=4)
    talk.turn(before)
    mirror = KvMirror(talk.cache)
    chosen = ZmqSettings(ANY, ANY, form=form, buffer_steps=buffer_steps)
    publisher = ZmqPublisher(mirror, chosen, block)
    client, reader = Client(publisher, form), vllm_reader()
    try:
        for operation in operations:
            if operation == "clear":
                talk.cache.clear()
            else:
                tokens, stop, salt = operation
                talk.turn(tokens, stop=min(stop, len(tokens)), salt=salt)
            assert mirror.settle()
            follow(client, reader)
            assert reader.full() == talk.full(salted=False)
            late = vllm_reader()
            follow(client, late)
            assert late.full() == talk.full(salted=False)
            reader.expected = late.expected  # what the late one caused everybody has heard
            assert publisher.counts.refused == publisher.counts.broken == publisher.counts.behind == 0
    finally:
        client.close()
        publisher.close()
        mirror.close()


@pytest.mark.parametrize("form", FORMS)
def test_live_messages(setting, vllm_reader, form: str) -> None:
    talk, _, client = setting(form, topic="kv@box", before=range(9))
    reader = vllm_reader()
    (first,) = client.ask(0)
    reader.feed(*first)
    assert reader.full() == talk.full(salted=False)
    for step in range(1, 1000):  # until the subscription has arrived
        talk.turn(range(step, step + 20))
        if client.sub.poll(10):
            break
    number, batch = client.live()
    for missed in client.ask(1):
        if missed[0] < number:
            reader.feed(*missed)
    reader.feed(number, batch)
    talk.turn([1] * 50)
    while reader.full() != talk.full(salted=False):
        reader.feed(*client.live())
    assert client.ask(reader.expected) == []


def test_the_wire_of_the_array_form(setting) -> None:
    talk, _, client = setting("array")
    talk.turn(range(10), stop=8)
    assert client.ask(1) or client.ask(1)
    batches = [msgpack.unpackb(batch)[1] for _, batch in client.ask(0)]
    assert batches[0] == [["AllBlocksCleared"]]
    (a, b) = sorted((e for e in talk.truth().values() if len(e.tokens) == 4), key=lambda e: e.start)
    told = [event for batch in batches[1:] for event in batch]
    if len(told) == 1:  # both in one batch
        assert told == [["BlockStored", [a.hash, b.hash], None, list(range(8)), 4, None, "GPU", None, None]]
    else:
        assert told[1] == ["BlockStored", [b.hash], a.hash, [4, 5, 6, 7], 4, None, "GPU", None, None]


def test_the_wire_of_the_map_form(setting) -> None:
    talk, _, client = setting("map", before=range(10))
    ((_, batch),) = client.ask(0)
    (a, b) = sorted((e for e in talk.truth().values() if len(e.tokens) == 4), key=lambda e: e.start)
    assert msgpack.unpackb(batch)[1] == [
        {"type": "AllBlocksCleared"},
        {
            "type": "BlockStored",
            "block_hashes": [a.hash, b.hash],
            "parent_block_hash": None,
            "token_ids": list(range(8)),
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        },
    ]


def test_a_replay_of_what_is_lost_tells_everything_once(setting, vllm_reader) -> None:
    talk, publisher, client = setting("array", buffer_steps=3, blocks=8)
    mirror = publisher._mirror
    for start in range(0, 200, 10):
        talk.turn(range(start, start + 10))
        assert mirror.settle()
        client.ask(publisher.counts.batches)  # has published until here
    assert publisher.counts.batches > 10
    reader = vllm_reader()
    follow(client, reader)
    assert reader.full() == talk.full(salted=False)
    told = publisher.counts.batches
    late = vllm_reader()
    follow(client, late)
    assert late.full() == talk.full(salted=False)
    assert publisher.counts.batches == told, "the picture that the first one caused serves the second one too"


def test_a_number_of_another_life_gives_everything(setting, vllm_reader) -> None:
    talk, _, client = setting(before=range(20))
    reader = vllm_reader()
    for batch in client.ask(12345):
        reader.feed(*batch)
    assert reader.full() == talk.full(salted=False) != set()
    assert client.ask(1) == []


def test_a_cache_that_is_faster_than_the_publisher_is_told_afresh(setting, vllm_reader, monkeypatch) -> None:
    talk, publisher, client = setting("array", keep=4)
    follow(client, reader := vllm_reader())
    real = publisher._publish_changes
    monkeypatch.setattr(publisher, "_publish_changes", lambda: None)  # it sleeps
    talk.turn(range(100))
    assert publisher._mirror.settle()
    monkeypatch.setattr(publisher, "_publish_changes", real)
    follow(client, reader)
    assert publisher.counts.behind == 1
    assert reader.full() == talk.full(salted=False)
    assert len(reader.blocks) == 25


def test_history_is_bounded_in_bytes_too(setting, monkeypatch) -> None:
    monkeypatch.setattr("edgellm.server.kv_events.zmq_publisher._HISTORY_BYTES", 2000)
    talk, publisher, client = setting("array", blocks=50)
    for start in range(0, 3000, 60):
        talk.turn(range(start, start + 60))
        assert publisher._mirror.settle()
        client.ask(publisher.counts.batches)
        assert sum(len(batch) for _, batch in publisher._history) == publisher._history_bytes
        assert publisher._history_bytes <= 2000 or len(publisher._history) == 1


@pytest.mark.parametrize(
    "frames", [[b"x"], [b"", b"short"], [b"", bytes(9)], [b"y", bytes(8)], [b"", bytes(8), b""], [b""]]
)
def test_a_request_that_makes_no_sense_is_counted_and_harms_nobody(setting, frames: list[bytes]) -> None:
    _, publisher, client = setting(before=range(9))
    client.replay.send_multipart(frames)
    assert len(client.ask(0)) == 1
    assert publisher.counts.refused == 1


def test_a_client_that_leaves_during_its_replay_harms_nobody(setting) -> None:
    talk, publisher, client = setting("array")
    for _ in range(50):
        gone = client.context.socket(zmq.DEALER)
        gone.connect(publisher.replay_endpoint)
        gone.send_multipart([b"", bytes(8)])
        gone.close(linger=100)
    talk.turn(range(30))
    assert publisher._mirror.settle()
    assert len(client.ask(0)) >= 2
    assert publisher._thread.is_alive()


def test_a_request_socket_gets_one_batch(setting) -> None:
    _, publisher, client = setting("map", before=range(9))
    asking = client.context.socket(zmq.REQ)
    asking.setsockopt(zmq.RCVTIMEO, 10_000)
    asking.connect(publisher.replay_endpoint)
    asking.send(bytes(8))
    topic, number, batch = asking.recv_multipart()
    assert (topic, number) == (b"", bytes(8))
    assert msgpack.unpackb(batch)[1][0] == {"type": "AllBlocksCleared"}


def test_no_replay_where_none_is_wanted(setting, mirror_of, conversations) -> None:
    publisher = ZmqPublisher(mirror_of(conversations().cache), ZmqSettings(ANY, None), 4)
    assert publisher.replay_endpoint is None
    publisher.close()
    publisher.close()


def test_closing_frees_the_ports(setting, mirror_of, conversations) -> None:
    mirror = mirror_of(conversations().cache)
    first = ZmqPublisher(mirror, ZmqSettings(ANY, ANY), 4)
    chosen = ZmqSettings(first.endpoint, first.replay_endpoint)
    first.close()
    assert not mirror._bells
    ZmqPublisher(mirror, chosen, 4).close()


@pytest.mark.parametrize("name", ["endpoint", "replay_endpoint"])
def test_an_endpoint_that_is_taken_is_named(mirror_of, conversations, name: str) -> None:
    mirror = mirror_of(conversations().cache)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        chosen = ZmqSettings(**{"endpoint": ANY, "replay_endpoint": ANY, name: endpoint})
        with pytest.raises(ConfigError, match=f"{name}: {endpoint} cannot be bound"):
            ZmqPublisher(mirror, chosen, 4)
    with pytest.raises(ConfigError, match=f"{name}: nonsense cannot be bound"):
        ZmqPublisher(mirror, ZmqSettings(**{"endpoint": ANY, "replay_endpoint": ANY, name: "nonsense"}), 4)
    assert not mirror._bells


@pytest.mark.parametrize("missing", ["zmq", "msgpack"])
def test_a_missing_package_names_the_extra(mirror_of, conversations, monkeypatch, missing: str) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match=rf"need {missing}: pip install 'edgellm\[events\]'"):
        ZmqPublisher(mirror_of(conversations().cache), ZmqSettings(ANY, ANY), 4)


def test_importing_needs_neither_package(monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        assert name.partition(".")[0] not in ("zmq", "msgpack")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("vllm", "zmq_publisher"):
        spec = importlib.util.find_spec(f"edgellm.server.kv_events.{name}")
        assert spec is not None
        assert spec.loader is not None
        source = spec.loader.get_source(spec.name)  # type: ignore[attr-defined]
        assert "import zmq" not in source
        assert "import msgpack" not in source


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"form": "tuple"}, "form"),
        ({"buffer_steps": 0}, "buffer_steps"),
        ({"hwm": 0}, "hwm"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}:"):
        ZmqSettings(**options)
