"""A small tokenizer with the family's control tokens, and helpers for parsed output."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "tiny"
    make_checkpoint("tiny", folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(checkpoint_dir: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint_dir)


@pytest.fixture(scope="session")
def renderer(checkpoint_dir: Path, tokenizer: Tokenizer) -> ChatRenderer:
    return ChatRenderer.load(checkpoint_dir, tokenizer)
