"""What a service manager hears over a fake notify socket, and that the server does well without one."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.server import run
from edgellm.server.settings import ServerSettings
from edgellm.server.watchdog import Notifier, Watchdog, watchdog_from


class Manager:
    """The manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(30)

    def hear(self) -> str:
        return self.socket.recv(4096).decode()

    def heard(self) -> list[str]:
        """Everything that is there now."""
        found = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.hear())
        except BlockingIOError:
            return found
        finally:
            self.socket.settimeout(30)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@edgellm-test-{os.getpid()}-{id(request)}"
    made = Manager(address)
    yield made
    made.socket.close()


def engine(**changes: Any) -> SimpleNamespace:
    idle = {"healthy": True, "running": 0, "queued": 0, "steps": 0, "prefill_chunks": 0, "finished": {}}
    return SimpleNamespace(**{**idle, "executor_s": 0.0, **changes})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(address: str, state: SimpleNamespace, clock: Callable[[], float] = lambda: 0.0) -> Watchdog:
    return Watchdog(Notifier(address), lambda: state, 10.0, clock)  # type: ignore[arg-type, return-value]


def test_a_server_says_ready_alive_and_stopping(start: Any, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    servers: list[run.Server] = []
    make = run.make_server
    monkeypatch.setattr(run, "make_server", lambda *args: servers.append(make(*args)) or servers[0])
    running = start()
    serving = threading.Thread(target=run.run_server, args=(running.llm, ServerSettings(model="tiny", port=0)))
    serving.start()
    assert manager.hear() == "READY=1"
    assert [manager.hear() for _ in range(3)] == ["WATCHDOG=1"] * 3
    running.kill()
    watchdog = servers[0].watchdog
    assert watchdog is not None
    manager.heard()
    watchdog.beat()
    assert manager.heard() == []
    servers[0].should_exit = True
    assert manager.hear() == "STOPPING=1"
    serving.join(30)
    assert not serving.is_alive()


def test_a_dead_engine_is_not_said_to_be_ready(manager: Manager) -> None:
    async def begin() -> None:
        watch(manager.address, engine(healthy=False)).start()

    asyncio.run(begin())
    assert manager.heard() == []


def test_a_stuck_engine_is_no_longer_alive_until_it_gets_on(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    clock, state = Clock(), engine(running=1)
    watchdog = watch(manager.address, state, clock)
    watchdog.beat()
    clock.now = 10.0
    watchdog.beat()
    assert manager.heard() == ["WATCHDOG=1"] * 2
    clock.now = 10.1
    with caplog.at_level(logging.ERROR):
        watchdog.beat()
        watchdog.beat()
    assert manager.heard() == []
    assert len(caplog.records) == 1
    state.steps = 1
    watchdog.beat()
    assert manager.heard() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "progress", [{"steps": 1}, {"prefill_chunks": 1}, {"finished": {"stop": 1}}, {"executor_s": 1}]
)
def test_any_progress_counts(progress: dict[str, Any], manager: Manager) -> None:
    clock, state = Clock(), engine(queued=1)
    watchdog = watch(manager.address, state, clock)
    watchdog.beat()
    clock.now = 11.0
    vars(state).update(progress)
    watchdog.beat()
    assert manager.heard() == ["WATCHDOG=1"] * 2


def test_an_idle_engine_has_all_the_time(manager: Manager) -> None:
    clock, state = Clock(), engine()
    watchdog = watch(manager.address, state, clock)
    clock.now = 1e6
    watchdog.beat()
    state.running = 1  # a request that has just come has had no time yet
    watchdog.beat()
    assert manager.heard() == ["WATCHDOG=1"] * 2


def test_without_a_manager_there_is_no_watchdog() -> None:
    assert watchdog_from({}, engine) is None
    assert watchdog_from({"NOTIFY_SOCKET": ""}, engine) is None


@pytest.mark.parametrize("address", ["vsock:2:1234", "@", "/", "relative"])
def test_an_address_of_another_kind_is_logged_and_does_no_harm(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert watchdog_from({"NOTIFY_SOCKET": address}, engine) is None
    assert "NOTIFY_SOCKET" in caplog.text


def test_a_manager_that_is_gone_is_complained_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    with caplog.at_level(logging.WARNING):
        notifier.send("READY=1")
        notifier.send("WATCHDOG=1")
    assert len(caplog.records) == 1


def test_a_manager_that_does_not_listen_holds_nothing_up(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    for _ in range(10_000):  # far more than the socket's queue takes
        notifier.send("WATCHDOG=1")
    assert 0 < len(manager.heard()) < 10_000


@pytest.mark.parametrize(
    ("environ", "fed"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "60000000"}, True),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "²"}, False),
    ],
)
def test_the_watchdog_is_fed_when_this_process_is_asked_to(
    environ: dict[str, str], fed: bool, manager: Manager
) -> None:
    watchdog = watchdog_from({**environ, "NOTIFY_SOCKET": manager.address}, engine)  # type: ignore[arg-type]
    assert watchdog is not None

    async def begin() -> None:
        watchdog.start()
        await asyncio.sleep(0)

    asyncio.run(begin())
    assert manager.heard() == ["READY=1", *["WATCHDOG=1"] * fed]
