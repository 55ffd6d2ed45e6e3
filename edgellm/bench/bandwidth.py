"""Memory read bandwidth of this machine, measured with plain NumPy reads on all threads."""

from __future__ import annotations

import threading
import time

import numpy as np


class ReadProbe:
    """Reads one array, larger than the caches, on `threads` threads. Keeps the array while it lives."""

    def __init__(self, threads: int, megabytes: int = 512) -> None:
        self._parts = np.array_split(np.ones(megabytes * (1 << 20) // 4, dtype=np.float32), threads)
        self.read()

    def read(self) -> float:
        """The rate of one pass in GB/s (1e9 bytes)."""
        workers = [threading.Thread(target=part.sum) for part in self._parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - start) / 1e9
