"""Recompute the golden logits with transformers and compare; the executor's own agreement is in tests/graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN, PROMPTS, SHAPES, make_run, reference_logits

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.synth import make_checkpoint

pytestmark = pytest.mark.parity
pytest.importorskip("torch", reason="the parity extra is not installed")
pytest.importorskip("transformers", reason="the parity extra is not installed")


@pytest.mark.parametrize("shape", SHAPES)
def test_golden_logits_are_the_references(shape: str, tmp_path: Path) -> None:
    from hf_reference import load_reference, logits

    make_checkpoint(shape, tmp_path / shape, dtype="f32")
    checkpoint = Checkpoint.open(tmp_path / shape)
    forward = logits(load_reference(checkpoint))
    for kind in PROMPTS:
        stored = np.load(GOLDEN / f"{shape}-{kind}.npz")
        for name, rows in reference_logits(forward, make_run(kind, checkpoint.spec.vocab)).items():
            assert np.abs(rows - stored[name]).max() <= 2e-6, (kind, name)  # half a unit of the last stored place
