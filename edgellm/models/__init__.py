"""Checkpoints that ship with the package, one folder each in the Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent
DEFAULT: Final = "edge-tiny"


def shipped(name: str) -> Path | None:
    """The folder of the checkpoint `name`, or None when none of that name ships."""
    return next((path for path in _FOLDER.iterdir() if path.name == name and (path / "config.json").is_file()), None)
