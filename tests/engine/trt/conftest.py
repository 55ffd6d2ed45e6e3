"""Fixtures of the TensorRT tests: a calibrated NVFP4 model, and a stand-in for TensorRT's module."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.writer import quantize_checkpoint


@pytest.fixture(scope="session")
def nvfp4_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with every matrix that can be in NVFP4, and scales of activations."""
    folder = tmp_path_factory.mktemp("nvfp4")
    source = make_checkpoint("tiny", folder / "source")
    quantize_checkpoint(
        source, folder / "w4a4", named_recipe("nvfp4-all"), texts=[list(range(40)), list(range(90, 150))]
    )
    return folder / "w4a4"
