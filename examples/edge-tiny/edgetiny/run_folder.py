"""The folder of one training run: tokenizer, checkpoints, log.

What must stay true: a checkpoint file is whole or absent; `latest.pt` never disappears once it exists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class RunFolder:
    """Paths and files under `path`."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.tokenizer = path / "tokenizer"

    def save(self, state: Mapping[str, Any], name: str = "latest.pt") -> None:
        """Write a checkpoint in place of the one before."""
        scratch = self.path / f".{name}.tmp"
        with scratch.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path / name)

    def load(self, name: str = "latest.pt") -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.path / name, weights_only=True)
        return found

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line to log.jsonl."""
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
