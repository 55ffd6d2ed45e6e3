"""Writes request traces beside serving: a bounded queue, one thread behind it.

Whoever records only puts into the queue; hashing, JSON and the disk are the thread's. A full queue or a disk that fails
loses records, counted, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping

from edgellm.server.tracing.files import TraceFile
from edgellm.server.tracing.records import ADMISSION, REQUEST_END, Event, admission_event, request_event
from edgellm.server.tracing.settings import TraceSettings
from edgellm.server.turns import TurnRecord

_log = logging.getLogger("edgellm.server.tracing")

_PATIENCE_S = 10.0  # for the last records at close
_COMPACT = (",", ":")
_Make = Callable[[], Event | None]


class RequestTrace:
    """The trace of one server. `record` and `admission` may be called from any thread and never wait.

    Args:
        block_tokens: tokens of a hashed block: the bundle's block size.

    Attributes:
        written: records on disk (or on stderr).
        dropped: records lost: the queue was full, the disk failed, or the trace was closed.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, settings: TraceSettings, block_tokens: int) -> None:
        self.written = 0
        self._records = settings.records
        self._block_tokens = block_tokens
        self._start = time.monotonic()
        self._queue: queue.Queue[tuple[int, _Make] | None] = queue.Queue(settings.capacity)
        self._refused = 0
        self._lost = 0
        self._closed = False
        self._lock = threading.Lock()
        self._file = TraceFile(settings) if "file" in settings.sinks else None
        self._stderr = "stderr" in settings.sinks
        self._flush_s = settings.flush_interval_ms / 1e3
        self._thread = threading.Thread(target=self._run, name="edgellm-trace", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._refused + self._lost

    def record(self, turn: TurnRecord) -> None:
        """A request has ended. Requests of several choices leave no record."""
        if REQUEST_END in self._records:
            self._put(lambda: request_event(turn, self._block_tokens))

    def admission(
        self, unix_ms: int, session_id: str, decision: str, details: Mapping[str, float | int | str | bool]
    ) -> None:
        """The admission scheduler has decided about a session; recorded when `edgellm_admission` is switched on."""
        if ADMISSION in self._records:
            self._put(lambda: admission_event(unix_ms, session_id, decision, details))

    def close(self) -> None:
        """Writes what is waiting and ends the thread, or gives up on a disk that hangs. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_PATIENCE_S)
            self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            _log.error("request trace: the disk does not answer; what was not written is lost")
        elif self._file is not None:
            self._file.close()

    def _put(self, make: _Make) -> None:
        with self._lock:
            if not self._closed:
                try:
                    self._queue.put_nowait((round((time.monotonic() - self._start) * 1e3), make))
                    return
                except queue.Full:
                    pass
            self._refused += 1

    def _run(self) -> None:
        lines: list[str] = []
        size = 0
        due = 0.0
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, due - time.monotonic()) if lines else None)
            except queue.Empty:
                self._write(lines)
                lines, size = [], 0
                continue
            line = None if item is None else self._line(*item)
            if line is not None:
                if not lines:
                    due = time.monotonic() + self._flush_s
                lines.append(line)
                size += len(line)
            if lines and (item is None or self._full(len(lines), size) or time.monotonic() >= due):
                self._write(lines)
                lines, size = [], 0
            if item is None:
                return

    def _line(self, timestamp: int, make: _Make) -> str | None:
        try:
            event = make()
            if event is None:
                return None
            return json.dumps({"timestamp": timestamp, "event": event}, separators=_COMPACT) + "\n"
        except Exception:
            self._lose(1, "a record could not be made")
            return None

    def _full(self, lines: int, size: int) -> bool:
        return self._file is None or self._file.due(lines, size)

    def _write(self, lines: list[str]) -> None:
        try:
            if self._file is not None:
                self._file.write(lines)
            if self._stderr:
                sys.stderr.write("".join(lines))
                sys.stderr.flush()
            self.written += len(lines)
        except (OSError, ValueError):  # ValueError: stderr was closed
            self._lose(len(lines), "records could not be written")

    def _lose(self, count: int, why: str) -> None:
        if not self._lost:
            _log.error("request trace: %s; records are being lost, serving goes on", why, exc_info=True)
        self._lost += count
