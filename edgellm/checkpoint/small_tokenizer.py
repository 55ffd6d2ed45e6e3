"""A small byte-level BPE tokenizer with the family's special tokens, for random-weight checkpoints.

What must stay true: the same `vocab` always gives the same file, byte for byte; every byte has a token, so any text
round-trips; every id below `vocab` is a token, so whatever a random model emits can be decoded; special tokens come
last and in the family's order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from edgellm.errors import ConfigError

END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TURN: Final = "<|im_end|>"

# Name → whether the family's tokenizer marks it special (hidden by skip_special_tokens). Order is id order.
SPECIAL_TOKENS: Final[dict[str, bool]] = {
    **dict.fromkeys((END_OF_TEXT, "<|im_start|>", END_OF_TURN), True),
    **dict.fromkeys(
        (f"<|{k}_{end}|>" for k in ("object_ref", "box", "quad", "vision") for end in ("start", "end")), True
    ),
    **dict.fromkeys((f"<|{kind}_pad|>" for kind in ("vision", "image", "video")), True),
    **dict.fromkeys(("<tool_call>", "</tool_call>"), False),
    **dict.fromkeys((f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix", "pad")), False),
    **dict.fromkeys(("<|repo_name|>", "<|file_sep|>"), False),
    **dict.fromkeys(("<tool_response>", "</tool_response>", "<think>", "</think>"), False),
}

MIN_VOCAB: Final = 256 + len(SPECIAL_TOKENS)

_TEXT: Final = """
The agent reads the task, looks at the files and runs the tests. When a test fails, it opens the module that failed,
finds the line, changes it and runs the test again. There is nothing more to do when all of them pass; then it writes
down what was changed and why. A function that returns too early, a loop that never ends, a name that is not defined:
these are the usual reasons. The other ones take longer, and the best way to find them is to print what the program
has in its hands. You are a helpful assistant with access to the following functions. Reply with the answer only.
def count_words(path, limit=None):
    result = {}
    with open(path) as stream:
        for number, line in enumerate(stream):
            if limit is not None and number >= limit:
                break
            for word in line.split():
                result[word] = result.get(word, 0) + 1
    return result
class Counter:
    def __init__(self, name, value=0):
        self.name = name
        self.value = value
    def increment(self, step=1):
        self.value += step
        return self.value
import os, sys
if __name__ == "__main__":
    print(count_words(sys.argv[1]))
{"type": "function", "function": {"name": "read_file", "description": "Read a text file", "parameters": {"type":
"object", "properties": {"path": {"type": "string", "description": "The path of the file"}, "start": {"type":
"integer"}}, "required": ["path"]}}}
<function=bash>
<parameter=command>
cd /testbed && grep -rn "def test" tests/ | head -20 && python -m pytest tests -x -q
</parameter>
</function>
"""


def byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves; the others, in order, for U+0100 onwards.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


def write_small_tokenizer(folder: Path, vocab: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` with exactly `vocab` tokens.

    Raises:
        ConfigError: `vocab` cannot hold the 256 bytes and the special tokens.
    """
    if vocab < MIN_VOCAB:
        raise ConfigError(f"vocab_size {vocab} is too small for a byte-level tokenizer (at least {MIN_VOCAB})")
    alphabet = sorted(byte_alphabet().values())
    merges = _merges(vocab - MIN_VOCAB)
    tokens = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = byte_level_tokenizer(tokens, merges, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=s) for name, s in SPECIAL_TOKENS.items()])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(folder)


def byte_level_tokenizer(tokens: dict[str, int], merges: list[tuple[str, str]], *splitters: Any) -> Tokenizer:
    """Byte-level BPE as the family has it: NFC, `splitters` in sequence, no prefix space."""
    tokenizer = Tokenizer(BPE(tokens, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splitters))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def write_tokenizer_config(folder: Path) -> None:
    """Write ``tokenizer_config.json`` in the family's form."""
    config = {
        "add_bos_token": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "model_max_length": 262144,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _merges(count: int) -> list[tuple[str, str]]:
    """`count` merges: learned from `_TEXT` while pairs repeat, then made up."""
    merges: list[tuple[str, str]] = []
    known: set[str] = set()
    for a, b in chain(_learned(), _made_up(merges)):
        if len(merges) == count:
            break
        if a + b not in known:
            known.add(a + b)
            merges.append((a, b))
    return merges


def _learned() -> Iterator[tuple[str, str]]:
    """Byte-pair merges of `_TEXT`, most frequent pair first (ties by the pair itself)."""
    alphabet = byte_alphabet()
    words = Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", _TEXT))
    pieces = {word: [alphabet[byte] for byte in word.encode()] for word in words}
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best, frequency = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if frequency < 2:
            return
        yield best
        for parts in pieces.values():
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i += 1


def _made_up(merges: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Every letter and every merged token so far, followed by a letter. Endless: `merges` grows while this runs."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    yield from ((a, b) for a in letters for b in letters)
    yield from ((a + b, c) for a, b in merges for c in letters)
