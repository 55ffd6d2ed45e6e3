"""What a service manager hears: ready, alive, stopping (the sd_notify protocol, over a plain datagram socket).

What must stay true: without NOTIFY_SOCKET nothing happens at all; a manager that does not listen never holds up or ends
the server; "ready" and "alive" are said only while the engine loop is healthy and gets on with what it was given.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgellm.runtime.stats import EngineStats

log = logging.getLogger("edgellm.server")


class Notifier:
    """Sends states to the socket at `address`: a path, or a name in the abstract namespace, written "@name"."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._complained = False

    def send(self, state: str) -> None:
        """Send a line like "READY=1". A manager that cannot be reached is logged once."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)  # a full queue must not hold up the event loop
                sock.sendto(state.encode(), self._address)
        except OSError as error:
            if not self._complained:
                log.warning("NOTIFY_SOCKET: the service manager cannot be told %s: %s", state, error)
            self._complained = True


@dataclass(frozen=True, slots=True)
class _Progress:
    """What changes whenever the engine loop gets on, and nothing else changes."""

    steps: int
    prefill_chunks: int
    finished: int
    executor_s: float

    @classmethod
    def of(cls, stats: EngineStats) -> _Progress:
        return cls(stats.steps, stats.prefill_chunks, sum(stats.finished.values()), stats.executor_s)


class Watchdog:
    """Lives on the server's event loop, so that its beats show that the loop runs too.

    Args:
        stats: asks the engine.
        interval_s: seconds within which the manager wants to hear of us; None: it does not watch.
        clock: seconds.
    """

    def __init__(
        self,
        notifier: Notifier,
        stats: Callable[[], EngineStats],
        interval_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._stats = stats
        self._interval_s = interval_s
        self._clock = clock
        self._seen: _Progress | None = None
        self._since = clock()
        self._silent = False
        self._beats: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Say that the server is ready, and from now on that it is alive. Call it on the event loop."""
        if not self.alive():
            return
        self._notifier.send("READY=1")
        if self._interval_s is not None:
            self._beats = asyncio.get_running_loop().create_task(self._beat(self._interval_s / 2))

    def stopping(self) -> None:
        """Say that the server stops. Beats go on until the event loop ends: running requests may take a while."""
        self._notifier.send("STOPPING=1")

    def alive(self) -> bool:
        """Whether the engine is healthy and, while requests are there, did something within the interval."""
        stats = self._stats()
        progress, now = _Progress.of(stats), self._clock()
        idle = stats.running == 0 and stats.queued == 0
        if idle or progress != self._seen:
            self._seen, self._since = progress, now
        stuck = self._interval_s is not None and now - self._since > self._interval_s
        return stats.healthy and not stuck

    async def _beat(self, every_s: float) -> None:
        while True:
            self.beat()
            await asyncio.sleep(every_s)

    def beat(self) -> None:
        """Tell the manager once, unless the engine is dead or stuck; then the manager will restart the service."""
        if self.alive():
            self._notifier.send("WATCHDOG=1")
            self._silent = False
        elif not self._silent:
            log.error("the engine does not get on: the service manager's watchdog is no longer fed")
            self._silent = True


def watchdog_from(environ: Mapping[str, str], stats: Callable[[], EngineStats]) -> Watchdog | None:
    """What a service manager asks for in `environ` (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID); None: nothing.

    A value that cannot be used is logged and does without.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@" or not address.strip("/@"):
        log.warning("NOTIFY_SOCKET: %r is neither a path nor an abstract name: no notifications", address)
        return None
    return Watchdog(Notifier(address), stats, _interval_s(environ))


def _interval_s(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # another process is meant
    microseconds = environ.get("WATCHDOG_USEC", "")
    if microseconds and not (microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0):
        log.warning("WATCHDOG_USEC: %r is no positive number: the watchdog is not fed", microseconds)
        return None
    return int(microseconds) / 1e6 if microseconds else None
