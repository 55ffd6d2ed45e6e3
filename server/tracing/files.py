"""The file of a trace: a plain file that grows, or numbered gzip segments.

Whatever happens, whole lines stand on disk: a batch that could not be written whole is taken back, and every batch of a
segment is a gzip member of its own, so that a segment is readable at any moment, also after a kill.
"""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from edgellm.errors import ConfigError
from edgellm.server.tracing.settings import TraceSettings

_LEVEL = 6
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class TraceFile:
    """Opened at once, so that a wrong path is found when the server starts. A segment that exists is never touched.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._zipped = settings.format == "jsonl_gz"
        self._bytes = 0
        self._lines = 0
        try:
            settings.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = self._next_segment() if self._zipped else os.open(settings.path, _APPEND, 0o666)
        except OSError as error:
            raise ConfigError(f"request trace: cannot write {settings.path}: {error.strerror}") from error

    def due(self, lines: int, size: int) -> bool:
        """Whether so many lines of so many bytes should be written now: the buffer or the segment is full."""
        return size >= self._settings.buffer_bytes or self._full(lines, size)

    def write(self, lines: Sequence[str]) -> None:
        """Lines that end with a line feed, as one batch.

        Raises:
            OSError: nothing was written.
        """
        if self._full(0, 0):
            following = self._next_segment()
            os.close(self._fd)
            self._fd = following
            self._bytes = self._lines = 0
        data = "".join(lines).encode()
        self._append(gzip.compress(data, _LEVEL) if self._zipped else data)
        self._bytes += len(data)
        self._lines += len(lines)

    def close(self) -> None:
        os.close(self._fd)

    def _full(self, lines: int, size: int) -> bool:
        if not self._zipped:
            return False
        limit = self._settings.roll_lines
        return self._bytes + size >= self._settings.roll_bytes or 0 < limit <= self._lines + lines

    def _next_segment(self) -> int:
        for number in itertools.count():
            try:
                return os.open(segment_path(self._settings.path, number), _APPEND | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
        raise AssertionError

    def _append(self, data: bytes) -> None:
        start = os.fstat(self._fd).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, start)
            raise


def segment_path(prefix: Path, number: int) -> Path:
    return prefix.with_name(f"{prefix.name}.{number:06d}.jsonl.gz")
