"""The checkpoint's own tokenizer: text to ids and back, with the ids that mean something.

Encoding splits the text at added tokens and looks each piece up in a cache: a prompt that grew by one turn costs only
the new turn. The split is exact because the tokenizer itself cuts added tokens out before it normalises and
pre-tokenises the rest.

What must stay true: with special tokens allowed, ids equal those of the tokenizer library for the whole text; with
special tokens not allowed, no id of an added token ever comes out; decoding equals the library's. All methods may be
called from any thread.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers

from edgellm.checkpoint.tokenizer_files import read_json
from edgellm.errors import CheckpointError, RequestError
from edgellm.text.bytelevel import token_bytes
from edgellm.text.segments import SegmentCache
from edgellm.text.stream import TextStream

# Part of what the model says to its reader or to a parser, even where a tokenizer marks them special.
SPOKEN_TOKENS: Final = frozenset(
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
)
_NO_TOKEN: Final = re.compile(r"(?!)")


class Tokenizer:
    """A byte-level BPE tokenizer read from ``tokenizer.json``; make one with `load`.

    Attributes:
        vocab_size: highest token id + 1; the model's embedding may have more rows.
        eos_token_ids: ids that end a turn, sorted.
        special_ids: ids of control tokens (``<|im_end|>`` and such): never shown, never made from a client's text.
        added: text of every added token → id, control tokens and tags such as ``<think>`` alike.
        named: ``bos_token``, ``eos_token``, … of ``tokenizer_config.json``, those that are set.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        named: dict[str, str] | None = None,
        cache_bytes: int = 64 << 20,
    ) -> None:
        if type(library.decoder).__name__ != "ByteLevel":
            raise CheckpointError(f"tokenizer.json: decoder must be ByteLevel, got {type(library.decoder).__name__}")
        library.no_truncation()
        library.no_padding()
        tokens: dict[int, Any] = library.get_added_tokens_decoder()
        self._library = library
        self._normalizer = library.normalizer
        self._pre_tokenizer = library.pre_tokenizer
        self._model = library.model
        # A BPE vocabulary is numbered without holes; added tokens may leave some.
        self.vocab_size: int = max(library.get_vocab_size(with_added_tokens=False), max(tokens, default=-1) + 1)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self.added: dict[str, int] = {token.content: token_id for token_id, token in tokens.items()}
        self.special_ids = frozenset(
            i for i, token in tokens.items() if token.special and token.content not in SPOKEN_TOKENS
        )
        self.named = named or {}
        for token in tokens.values():
            if token.lstrip or token.rstrip or token.single_word or (token.special and token.normalized):
                flags = "lstrip, rstrip, single_word and, in a special token, normalized"
                raise CheckpointError(f"tokenizer.json: added token {token.content!r}: {flags} are not supported")
        # Tokens that match normalised text are left to the library; they are no control tokens.
        self._cut = _any_of(token.content for token in tokens.values() if not token.normalized)
        self._all_cut = not any(token.normalized for token in tokens.values())
        self._bytes: dict[int, bytes] = {}
        self._cache = SegmentCache(cache_bytes // 2)
        self._plain_cache = SegmentCache(cache_bytes // 2)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer files of a checkpoint or bundle.

        Raises:
            CheckpointError: ``tokenizer.json`` is missing, unreadable or not byte-level, or an end token is unknown.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json")
        try:
            library = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error
        named = _named_tokens(folder)
        return cls(library, eos_token_ids=_eos_ids(folder, library, named.get("eos_token")), named=named)

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of `text`; nothing is added in front or behind.

        Args:
            text: any text without lone surrogates.
            allow_special: whether the text of an added token becomes that token; False for text of a client.

        Raises:
            RequestError: `text` holds a lone surrogate, which has no UTF-8 form.
        """
        check_surrogates(text)
        if not allow_special:
            return list(self.encode_plain(text))
        ids: list[int] = []
        for part in self.split(text):
            ids.extend(self.encode_part(part))
        return ids

    def split(self, text: str) -> list[str]:
        """`text` cut at added tokens: the even entries are text between them (perhaps empty), the odd ones tokens."""
        return self._cut.split(text)

    def encode_part(self, part: str) -> Sequence[int]:
        """Ids of one entry of `split`, from the cache when it was seen before."""
        if not part:
            return ()
        if (token_id := self.added.get(part)) is not None:
            return (token_id,)
        ids = self._cache.get(part)
        if ids is None:
            # A batch of one: unlike `encode` it lets other threads run meanwhile.
            (encoding,) = self._library.encode_batch([part], add_special_tokens=False)
            ids = array("I", encoding.ids)
            self._cache.put(part, ids)
        return ids

    def encode_plain(self, text: str) -> Sequence[int]:
        """Ids of `text` in which the text of an added token is ordinary text."""
        if self._all_cut and not self._cut.search(text):
            return self.encode_part(text)
        ids = self._plain_cache.get(text)
        if ids is None:
            normal = text if self._normalizer is None else self._normalizer.normalize_str(text)
            pieces = [(normal, (0, 0))] if self._pre_tokenizer is None else self._pre_tokenizer.pre_tokenize_str(normal)
            ids = array("I", [token.id for entry in pieces for token in self._model.tokenize(entry[0])])
            self._plain_cache.put(text, ids)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary have no text.

        Args:
            ids: token ids.
            skip_special: leave out `special_ids`.
        """
        hidden = self.special_ids if skip_special else frozenset()
        return b"".join([self.token_bytes(i) for i in ids if i not in hidden]).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; a character may be spread over several tokens."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self._library.id_to_token(token_id) if 0 <= token_id < 2**32 else None
            found = self._bytes[token_id] = b"" if token is None else token_bytes(token)
        return found

    def to_json(self) -> str:
        """The whole tokenizer as text in the form of ``tokenizer.json``."""
        return str(self._library.to_str())

    def stream(
        self, skip_special: bool = True, stop: Sequence[str] = (), *, spoken: Collection[str] = ()
    ) -> TextStream:
        """An incremental decoder for one generation.

        Args:
            skip_special: leave out `special_ids`.
            stop: strings that end the text; they are not part of it.
            spoken: texts of control tokens that are shown all the same, because a parser needs them.

        Raises:
            RequestError: an empty stop string.
        """
        shown = {self.added[text] for text in spoken if text in self.added}
        return TextStream(self.token_bytes, self.special_ids - shown if skip_special else frozenset(), stop)


def check_surrogates(text: str, param: str | None = None) -> None:
    """Refuse text with half of a surrogate pair (a cut emoji): it has no UTF-8 form, so no tokens.

    Raises:
        RequestError: naming `param` and the position.
    """
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"{param or 'text'} contains a lone surrogate at character {error.start}"
        raise RequestError(where, param=param, code="invalid_string") from None


def _any_of(literals: Iterable[str]) -> re.Pattern[str]:
    """Leftmost, then longest of `literals`, as one capture group."""
    ordered = sorted((re.escape(text) for text in literals if text), key=len, reverse=True)
    return re.compile(f"({'|'.join(ordered)})") if ordered else _NO_TOKEN


def _named_tokens(folder: Path) -> dict[str, str]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    named: dict[str, str] = {}
    for key, value in read_json(path).items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            named[key] = text
    return named


def _eos_ids(folder: Path, library: tokenizers.Tokenizer, eos_token: str | None) -> set[int]:
    """The end tokens of config.json, generation_config.json and tokenizer_config.json: each of them ends a turn."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if not (folder / name).is_file():
            continue
        config = read_json(folder / name)
        nested = config.get("text_config")
        for source in (config, nested if isinstance(nested, dict) else {}):
            value = source.get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            for token_id in values:
                if type(token_id) is not int or library.id_to_token(max(token_id, 0)) is None:
                    raise CheckpointError(f"{name}: eos_token_id {token_id!r} is not a token of tokenizer.json")
                ids.add(token_id)
    if eos_token is not None:
        token_id = library.token_to_id(eos_token)
        if token_id is None:
            raise CheckpointError(f"tokenizer_config.json: eos_token {eos_token!r} is not in tokenizer.json")
        ids.add(token_id)
    return ids
