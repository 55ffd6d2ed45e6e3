"""KV events over ZeroMQ, as vLLM publishes them: a PUB socket, and a ROUTER socket for who missed something.

A message is three frames: topic, number of the batch (8 bytes, big-endian, from 0 without gaps), batch (`vllm`). Asked
with the number of a batch, the replay socket sends that one and all later ones that are kept, and a mark of the end.

What must stay true: batch 0 tells everything that is there; a replay from a number that is not kept begins with a batch
that says `AllBlocksCleared` and then tells everything, so that whoever asks is exact again at its end; nothing waits
for a subscriber; the sockets belong to one thread.
"""

from __future__ import annotations

import importlib
import logging
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

from edgellm.errors import ConfigError
from edgellm.server.kv_events.ledger import Behind
from edgellm.server.kv_events.mirror import KvMirror, Numbered
from edgellm.server.kv_events.vllm import Form, cleared, wire_events

log = logging.getLogger("edgellm.server")

END = b"\xff" * 8  # in place of a number, behind the last batch of a replay
_EVENTS = 256  # changes in one batch
_HISTORY_BYTES = 64 << 20
_SPARE = 64


@dataclass(frozen=True, slots=True)
class ZmqSettings:
    """Where and how to publish. Both endpoints are bound.

    Attributes:
        replay_endpoint: None: no replay.
        topic: first frame of every message; subscribers filter by its beginning.
        buffer_steps: batches kept for replay, and never more than 64 MiB of them.
        hwm: messages that wait for one slow subscriber before it loses some.
        form: of events and replays; "array": as vLLM up to 0.22, "map": as later ones.
    """

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = "tcp://127.0.0.1:5558"
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    form: Form = "array"

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ConfigError(f"form: must be one of {', '.join(get_args(Form))}, got {self.form!r}")
        for name in ("buffer_steps", "hwm"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")


@dataclass(slots=True)
class ZmqCounts:
    """Since the start. `behind`: times that the cache changed faster than it could be published, each followed by a
    batch that tells everything; `refused`: replay requests that made no sense; `broken`: replays that their client did
    not take."""

    batches: int = 0
    replays: int = 0
    behind: int = 0
    refused: int = 0
    broken: int = 0


class ZmqPublisher:
    """Publishes what a mirror shows until it is closed. See the module's docstring.

    Args:
        block_tokens: tokens of a full block.

    Raises:
        ConfigError: pyzmq or msgpack is not installed, or an endpoint cannot be bound.
    """

    def __init__(self, mirror: KvMirror, settings: ZmqSettings, block_tokens: int) -> None:
        self._zmq = _module("zmq")
        self._pack = _module("msgpack").packb
        self._mirror = mirror
        self._settings = settings
        self._block_tokens = block_tokens
        self._history: deque[tuple[int, bytes]] = deque()
        self._history_bytes = 0
        self._whole = 0  # the last batch that tells everything
        self._topic = settings.topic.encode()
        self.counts = ZmqCounts()
        self._context = self._zmq.Context()
        try:
            self._pub = self._bound(self._zmq.PUB, "endpoint", settings.endpoint, settings.hwm)
            self._replay = None
            if settings.replay_endpoint is not None:
                # A whole replay may wait for its client, behind one that it took: that is reported half a queue late.
                room = 2 * (settings.buffer_steps + 1) + _SPARE
                self._replay = self._bound(self._zmq.ROUTER, "replay_endpoint", settings.replay_endpoint, room)
                self._replay.setsockopt(self._zmq.ROUTER_MANDATORY, 1)  # tells when a client does not take it
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self.endpoint = _address(self._pub)
        self.replay_endpoint = None if self._replay is None else _address(self._replay)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._closing = False
        self._silence = mirror.on_change(self._ring)
        self._thread = threading.Thread(target=self._main, name="edgellm-kv-zmq", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish what there is and stop. Idempotent."""
        self._closing = True
        self._silence()
        self._ring()
        self._thread.join()

    def _ring(self) -> None:
        with suppress(OSError):  # enough rings wait already, or the thread has ended
            self._wake.send(b"\0")

    def _bound(self, kind: int, name: str, endpoint: str, hwm: int) -> Any:
        made = self._context.socket(kind)
        made.setsockopt(self._zmq.LINGER, 0)
        made.setsockopt(self._zmq.SNDHWM, hwm)
        try:
            made.bind(endpoint)
        except self._zmq.ZMQError as error:
            raise ConfigError(f"KV events, {name}: {endpoint} cannot be bound: {error}") from error
        return made

    # -- the publisher's thread

    def _main(self) -> None:
        try:
            self._begin()
            poller = self._zmq.Poller()
            poller.register(self._woken.fileno(), self._zmq.POLLIN)
            if self._replay is not None:
                poller.register(self._replay, self._zmq.POLLIN)
            while True:
                closing = self._closing
                self._publish_changes()
                if closing:
                    break
                ready = dict(poller.poll())
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                if self._replay is not None and self._replay in ready:
                    self._publish_changes()  # a replay tells all that is known by then
                    self._serve_replay()
        except Exception:
            log.critical("KV events are no longer published", exc_info=True)
        finally:
            self._context.destroy(linger=0)
            self._woken.close()
            self._wake.close()

    def _begin(self) -> None:
        """Start from a picture: one batch that tells everything."""
        self._reader = self._mirror.reader()
        shown: list[Numbered] = []
        while not shown or shown[-1].resume is None:
            shown += self._reader.take(_EVENTS)
        self._publish([cleared(self._settings.form), *self._wire(shown)], whole=True)

    def _publish_changes(self) -> None:
        try:
            while changes := self._reader.take(_EVENTS):
                if told := self._wire(changes):
                    self._publish(told)
        except Behind:
            log.warning("KV events: the cache changes faster than it can be published; starting afresh")
            self.counts.behind += 1
            self._begin()

    def _wire(self, changes: list[Numbered]) -> list[Any]:
        return wire_events((change.event for change in changes), self._block_tokens, self._settings.form)

    def _publish(self, told: list[Any], *, whole: bool = False) -> None:
        number = self.counts.batches
        batch = self._pack([time.time(), told, 0])
        self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), batch])
        self.counts.batches += 1
        if whole:
            self._whole = number
        self._history.append((number, batch))
        self._history_bytes += len(batch)
        while len(self._history) > 1 and (
            len(self._history) > self._settings.buffer_steps or self._history_bytes > _HISTORY_BYTES
        ):
            self._history_bytes -= len(self._history.popleft()[1])

    def _serve_replay(self) -> None:
        assert self._replay is not None
        request = self._replay.recv_multipart()
        if len(request) != 3 or request[1] or len(request[2]) != 8:
            self.counts.refused += 1
            return
        client, start = request[0], int.from_bytes(request[2], "big")
        oldest = self._history[0][0]
        if start < oldest or start > self.counts.batches:  # gone, or counted in another life of the server
            if self._whole < oldest:
                self._begin()
            start = self._whole
        self.counts.replays += 1
        try:
            for number, batch in self._history:
                if number >= start:
                    self._answer(client, self._topic, number.to_bytes(8, "big"), batch)
            self._answer(client, b"", END, b"")
        except self._zmq.ZMQError:  # its queue is full, or it has left
            self.counts.broken += 1

    def _answer(self, client: bytes, topic: bytes, number: bytes, batch: bytes) -> None:
        """Newer readers want the topic too, older ones know no such frame (vLLM pull request 45177)."""
        assert self._replay is not None
        frames = [topic, number, batch] if self._settings.form == "map" else [number, batch]
        self._replay.send_multipart([client, b"", *frames], self._zmq.NOBLOCK)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"KV events over ZeroMQ need {name}: pip install 'edgellm[events]'") from error


def _address(bound: Any) -> str:
    """With the port that was chosen, where the endpoint left it open."""
    endpoint: str = bound.last_endpoint.rstrip(b"\0").decode()
    return endpoint
