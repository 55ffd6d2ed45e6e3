"""How much memory the process itself needs, watched while it works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

_SECONDS: Final = 0.05


@dataclass(slots=True)
class Peak:
    """Largest amount seen so far, in bytes."""

    size: int = 0

    def __str__(self) -> str:
        return f"peak memory {self.size / 1e9:.2f} GB"


@contextmanager
def watched_memory() -> Iterator[Peak]:
    """Samples resident memory 20 times a second, less the pages of mapped files: those the system takes back."""
    peak, ended, process = Peak(), threading.Event(), psutil.Process()

    def sample() -> None:
        memory = process.memory_info()
        peak.size = max(peak.size, memory.rss - getattr(memory, "shared", 0))

    def watch() -> None:
        while not ended.wait(_SECONDS):
            sample()

    thread = threading.Thread(target=watch, name="memory watch", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        sample()
