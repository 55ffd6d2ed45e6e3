"""The tokenizer side of a checkpoint: which files belong to it, and the token ids that end a turn.

Nothing here tokenizes; `edgellm.text` does. What must stay true: every id returned is below the model's vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edgellm.checkpoint.fields import Fields
from edgellm.errors import CheckpointError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `CheckpointError` naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} must be a JSON object")
    return value


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The tokenizer and chat-template files present in `folder`, in the order of `TOKENIZER_FILES`."""
    return tuple(path for name in TOKENIZER_FILES if (path := folder / name).is_file())


def chat_template(folder: Path) -> str | None:
    """The checkpoint's chat template: ``chat_template.jinja``, else the one inside ``tokenizer_config.json``.

    A list of named templates gives the one called ``default``.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path.name} cannot be read: {error}") from error
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    value = read_json(path).get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{path.name}: chat_template must be a string or a list of named templates")
    return value


def eos_token_ids(folder: Path, config: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
    """Ids that end a turn: those of config.json, generation_config.json and the tokenizer's ``eos_token``, sorted.

    The three files of one checkpoint commonly name different ones (end of turn, end of text); each ends generation.
    """
    ids = set(_ids(Fields(config, "config.json")))
    if isinstance(config.get("text_config"), Mapping):
        ids.update(_ids(Fields(config["text_config"], "config.json: text_config")))
    if (folder / "generation_config.json").is_file():
        ids.update(_ids(Fields(read_json(folder / "generation_config.json"), "generation_config.json")))
    ids.update(_tokenizer_eos(folder, vocab))
    for token in ids:
        if not 0 <= token < vocab:
            raise CheckpointError(f"eos_token_id {token} is outside the vocabulary of {vocab}")
    return tuple(sorted(ids))


def _ids(fields: Fields) -> list[int]:
    value = fields.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in values):
        raise fields.error("eos_token_id", "must be an integer or an array of integers")
    return values


def _tokenizer_eos(folder: Path, vocab: int) -> list[int]:
    """Also checks that every token of ``tokenizer.json`` has a row in the embedding."""
    if not (folder / "tokenizer.json").is_file():
        return []
    ids = _token_ids(read_json(folder / "tokenizer.json"))
    if ids:
        token, highest = max(ids.items(), key=lambda item: item[1])
        if highest >= vocab:
            raise CheckpointError(f"tokenizer.json: token {token!r} has id {highest}, the vocabulary is {vocab}")
    if not (folder / "tokenizer_config.json").is_file():
        return []
    eos = read_json(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    if eos is None:
        return []
    if not isinstance(eos, str) or eos not in ids:
        raise CheckpointError(f"tokenizer_config.json: eos_token {eos!r:.60} is not in tokenizer.json")
    return [ids[eos]]


def _token_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    where = Fields(tokenizer, "tokenizer.json")
    model = where.child("model")
    vocab = model.get("vocab") if model else None
    added = where.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise CheckpointError("tokenizer.json: model.vocab must be an object and added_tokens an array")
    ids = dict(vocab)
    for item in added:
        entry = Fields(item, "tokenizer.json: added_tokens[]")
        ids[entry.text("content")] = entry.integer("id", low=0)
    if not all(type(token) is int for token in ids.values()):
        raise CheckpointError("tokenizer.json: a token id is not an integer")
    return ids
