"""A tiny bundle with short cache blocks, and an oracle: one-shot runs on an executor of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracle import Oracle

from edgellm.checkpoint.synth import make_checkpoint
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
