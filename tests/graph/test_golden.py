"""The graphs reproduce transformers' logits (committed; tests/parity recomputes them)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN, PROMPTS, SHAPES, TOLERANCE, executor_logits, make_run

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.base import Executor
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.engine.registry import open_executor


@pytest.fixture(scope="module", params=SHAPES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Checkpoint, Executor]:
    folder = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, folder / "checkpoint", dtype="f32")
    build_bundle(folder / "checkpoint", folder / "bundle", load_recipe("cpu-f32"))
    executor = open_executor(Bundle.open(folder / "bundle"), slots=2, context=1024, threads=2)
    return request.param, Checkpoint.open(folder / "checkpoint"), executor


@pytest.mark.parametrize("kind", PROMPTS)
def test_matches_the_reference(built: tuple[str, Checkpoint, Executor], kind: str) -> None:
    shape, checkpoint, executor = built
    path: Path = GOLDEN / f"{shape}-{kind}.npz"
    stored = np.load(path)
    assert str(stored["hash"]) == checkpoint.content_hash(), (
        "the random weights are not those of the golden file: run tests/parity/make_golden.py"
    )
    found = executor_logits(executor, make_run(kind, checkpoint.spec.vocab))
    errors = {name: float(np.abs(rows - stored[name]).max()) for name, rows in found.items()}
    print(shape, kind, {name: f"{error:.1e}" for name, error in errors.items()})
    assert max(errors.values()) <= TOLERANCE, errors
