"""Recompute the committed golden logits: python tests/parity/make_golden.py (needs the `parity` extra)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from golden import GOLDEN, PROMPTS, SHAPES, make_run, reference_logits
from hf_reference import load_reference, logits

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.synth import make_checkpoint


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            make_checkpoint(shape, Path(folder) / shape, dtype="f32")
            checkpoint = Checkpoint.open(Path(folder) / shape)
            forward = logits(load_reference(checkpoint))
            for kind in PROMPTS:
                rows = reference_logits(forward, make_run(kind, checkpoint.spec.vocab))
                found = {name: values.astype(np.float32) for name, values in rows.items()}
                np.savez_compressed(GOLDEN / f"{shape}-{kind}.npz", hash=checkpoint.content_hash(), **found)
                print(shape, kind)


if __name__ == "__main__":
    main()
