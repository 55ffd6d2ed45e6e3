"""Tokenizer and renderer of the tiny preset, for measurements over an executor that has no model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer


def tiny_text() -> tuple[Tokenizer, ChatRenderer]:
    """Both read whole; nothing is left on disk."""
    with tempfile.TemporaryDirectory(prefix="edgellm-tiny-") as folder:
        path = make_checkpoint("tiny", Path(folder) / "tiny")
        tokenizer = Tokenizer.load(path)
        return tokenizer, ChatRenderer.load(path, tokenizer)
