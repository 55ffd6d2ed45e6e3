"""What a slot must answer: one-shot runs of a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import Chunk, DraftNodes, DraftResult, Executor


class Oracle:
    """What a fresh slot says after one-shot runs of a whole sequence; remembers its answers."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._drafts: dict[tuple[tuple[int, ...], tuple[int, ...]], DraftResult] = {}

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after the last of `tokens`."""
        key = tuple(tokens)
        if key not in self._rows:
            self._rows[key] = self._run(key).copy()
        return self._rows[key]

    def draft(self, tokens: Sequence[int], chain: Sequence[int]) -> DraftResult:
        """Draft step after `tokens` and the chain of draft nodes `chain`, the root first; for its last node."""
        key = (tuple(tokens), tuple(chain))
        if key not in self._drafts:
            self._run(key[0])
            for node, token in enumerate(chain):
                self._drafts[key] = self.executor.draft([DraftNodes(0, [token], [node - 1])])[0]
        return self._drafts[key]

    def _run(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        self.executor.reset(0)
        step = self.executor.info.max_chunk
        for start in range(0, len(tokens), step):
            row = self.executor.advance([Chunk(0, tokens[start : start + step], True)]).row(0)
        return row
