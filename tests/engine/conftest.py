"""A tiny bundle with short cache blocks, and an oracle: one-shot runs on an executor of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.base import Chunk, DraftNodes, DraftResult
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import Recipe

BLOCK = 16
CONTEXT = 256
SLOTS = 4


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return make_checkpoint("tiny", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Its float32 bundle with blocks of 16 tokens."""
    recipe = Recipe(block_tokens=BLOCK, context=CONTEXT, prefill_chunk=128)
    return Bundle.open(build_bundle(checkpoint, tmp_path_factory.mktemp("bundle") / "tiny", recipe))


def _open(bundle: Bundle, slots: int) -> OrtExecutor:
    return OrtExecutor(bundle, slots=slots, context=CONTEXT, threads=1, speculation=True)


@pytest.fixture(scope="session")
def _executor(bundle: Bundle) -> Iterator[OrtExecutor]:
    made = _open(bundle, SLOTS)
    yield made
    made.close()


@pytest.fixture
def executor(_executor: OrtExecutor) -> OrtExecutor:
    """An executor whose slots are empty; what was published before is still there."""
    for slot in range(SLOTS):
        _executor.reset(slot)
    return _executor


class Oracle:
    """What a fresh slot says after one-shot runs of a whole sequence; remembers its answers."""

    def __init__(self, executor: OrtExecutor) -> None:
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


@pytest.fixture(scope="session")
def oracle(bundle: Bundle) -> Iterator[Oracle]:
    """See `Oracle`."""
    made = _open(bundle, 1)
    yield Oracle(made)
    made.close()


@pytest.fixture
def tokens() -> list[int]:
    """Random tokens as long as the context."""
    return [int(token) for token in np.random.default_rng(7).integers(0, 1024, CONTEXT)]
