"""Text of a token stream as it grows: never half a character, never a piece of a stop string that may still match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgellm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of `TextStream.push`."""

    text: str  # to be shown now
    stop: str | None  # the stop string that matched; the stream is over then
    used: int  # tokens of the push up to and including the one that completed the match (all of them without one)


class TextStream:
    """Incremental detokeniser with stop strings.

    Joining the text of all pushes and of `finish` gives the decoded text of all tokens up to the first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decode_stream(skip_special=skip_special)
        self._skip_special = skip_special
        self._stop = tuple(stop)
        self._held = ""  # decoded but possibly the beginning of a stop string
        self._pending: list[int] = []  # tokens whose characters are not whole yet
        self._ended = False

    def push(self, ids: Sequence[int]) -> Pushed:
        """Add tokens. After a stop match nothing more may be pushed."""
        shown: list[str] = []
        for count, token in enumerate(ids, 1):
            piece = self._tokenizer.step(self._decoder, token)
            if piece is None:
                self._pending.append(token)
                continue
            self._pending.clear()
            text, stop = self._filter(piece)
            shown.append(text)
            if stop is not None:
                self._ended = True
                return Pushed("".join(shown), stop, count)
        return Pushed("".join(shown), None, len(ids))

    def finish(self) -> Pushed:
        """What was held back: an incomplete character becomes U+FFFD, as decoding all tokens gives."""
        if self._ended:
            return Pushed("", None, 0)
        self._ended = True
        tail = self._tokenizer.decode(self._pending, skip_special=self._skip_special) if self._pending else ""
        text, stop = self._filter(tail)
        if stop is None:
            text, self._held = text + self._held, ""
        return Pushed(text, stop, 0)

    def _filter(self, piece: str) -> tuple[str, str | None]:
        """(text that is safe to show, stop string that matched)."""
        text = self._held + piece
        if not self._stop:
            return text, None
        hits = [(text.find(stop), -len(stop), stop) for stop in self._stop if stop in text]
        if hits:
            at, _, stop = min(hits)
            self._held = ""
            return text[:at], stop
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
