"""The command line, run in this process, over one tiny bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run, edgellm


@pytest.fixture(scope="session")
def run() -> Run:
    return edgellm


@pytest.fixture(scope="session")
def checkpoint(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "tiny"
    assert run("make-checkpoint", path).exit_code == 0
    return path


@pytest.fixture(scope="session")
def bundle(run: Run, checkpoint: Path) -> Path:
    path = checkpoint.parent / "tiny.bundle"
    result = run("build", checkpoint, "--out", path)
    assert result.exit_code == 0, result.output
    return path
