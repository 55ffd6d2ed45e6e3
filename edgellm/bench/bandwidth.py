"""Memory read bandwidth of this machine, measured with plain NumPy reads on all threads."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray


def read_bandwidth(threads: int, megabytes: int = 1024, rounds: int = 6) -> float:
    """Best observed read rate in GB/s (1e9 bytes) over an array larger than the caches.

    The best of several rounds is taken: other work on the machine can only make a round slower, and the figure is
    used as the limit that decoding is compared with.
    """
    data = np.ones(megabytes * (1 << 20) // 4, dtype=np.float32)
    parts = np.array_split(data, threads)
    return max(_one_round(parts) for _ in range(rounds))


def _one_round(parts: list[NDArray[np.float32]]) -> float:
    workers = [threading.Thread(target=part.sum) for part in parts]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(part.nbytes for part in parts) / (time.perf_counter() - start) / 1e9
