"""The checkpoint's tokenizer: exact encoding with a cache of segments, and what the rest needs to know of its ids.

A text is cut at control-token literals before the `tokenizers` library sees it. Added tokens are matched before
normalisation and pre-tokenisation, so the pieces between them never influence each other: encoding piece by piece gives
the same ids, and a long prompt that grew at its end costs only its new pieces.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from edgellm.errors import CheckpointError, RequestError

_CACHE_CHARS = 32_000_000  # characters of cached segments


class Tokenizer:
    """Use `load`. Safe to call from several threads."""

    def __init__(self, backend: Backend, plain: Backend, eos: tuple[int, ...]) -> None:
        self._backend = backend
        self._plain = plain  # the same without added tokens: text that must not become control tokens
        added = backend.get_added_tokens_decoder()
        self.added: dict[str, int] = {token.content: index for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.eos_token_ids = eos
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        literals = sorted(self.added, key=len, reverse=True)
        self.literal = re.compile("(" + "|".join(map(re.escape, literals)) + ")") if literals else re.compile("(?!)")
        self._cache: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._cached_chars = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str) -> Tokenizer:
        """Read tokenizer.json and the end-of-sequence ids of a checkpoint or bundle folder.

        Raises:
            CheckpointError: a file is missing or cannot be read.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            data = json.loads(text)
            backend = Backend.from_str(text)
            plain = Backend.from_str(json.dumps({**data, "added_tokens": []}))
        except Exception as error:
            raise CheckpointError(f"{path}: {error}") from error
        return cls(backend, plain, _eos_ids(folder, backend))

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of `text`.

        With `allow_special` control-token literals become control tokens; without it they are ordinary text.

        Raises:
            RequestError: the text holds a lone surrogate, which no encoding has.
        """
        if not allow_special:
            return list(self._segment(text, False))
        ids: list[int] = []
        for piece in self.literal.split(text):
            if piece in self.added:
                ids.append(self.added[piece])
            elif piece:
                ids.extend(self._segment(piece, True))
        return ids

    def decode(self, ids: list[int] | tuple[int, ...], *, skip_special: bool = True) -> str:
        """Text of ids; invalid bytes become U+FFFD. `skip_special` leaves out control tokens such as end-of-turn."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def decode_stream(self, *, skip_special: bool) -> DecodeStream:
        """The library's incremental decoder; feed it with `step`."""
        return DecodeStream(skip_special_tokens=skip_special)

    def step(self, stream: DecodeStream, token: int) -> str | None:
        """Text that `token` completes, or None while a character is not whole."""
        text: str | None = stream.step(self._backend, token)
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for (byte-level vocabularies)."""
        literal = self._backend.id_to_token(token)
        if literal is None:
            return b""
        if literal in self.added:
            return literal.encode()
        try:
            return bytes(_BYTES[char] for char in literal)
        except KeyError:
            return literal.encode()

    def _segment(self, text: str, special: bool) -> list[int]:
        key = (text, special)
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        try:
            backend = self._backend if special else self._plain
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("text holds a lone surrogate; send well-formed Unicode", param="messages") from error
        with self._lock:
            self._cache[key] = ids
            self._cached_chars += len(text)
            while self._cached_chars > _CACHE_CHARS:
                old, _ = self._cache.popitem(last=False)
                self._cached_chars -= len(old[0])
        return ids


def _eos_ids(folder: Path, backend: Backend) -> tuple[int, ...]:
    """Ids from generation_config.json and the tokenizer's own eos_token, in that order."""
    ids: list[int] = []
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
        ids += value if isinstance(value, list) else [] if value is None else [value]
    config = folder / "tokenizer_config.json"
    if config.is_file():
        token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        literal = token.get("content") if isinstance(token, dict) else token
        found = backend.token_to_id(literal) if literal else None
        ids += [] if found is None else [found]
    return tuple(dict.fromkeys(ids))


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary, inverted (source: the GPT-2 scheme)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()
