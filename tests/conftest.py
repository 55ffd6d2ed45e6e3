"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with the handed data (MLPerf trace, bug-report cases); the test is skipped when it is absent."""
    path = Path(os.environ.get("EDGELLM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (path / "data" / "agentic_coding_2.5h.jsonl").is_file():
        pytest.skip(f"handed data not found at {path}; set EDGELLM_SHARED")
    return path
