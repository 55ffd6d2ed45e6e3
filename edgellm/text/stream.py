"""From generated ids to text, as they come.

What must stay true: the pieces joined equal the decoding of all ids, cut before the first stop string; no piece ends
inside a character or contains the beginning of a stop string that may still be completed; how ids are grouped into
pushes changes nothing; the work is linear in the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from edgellm.errors import RequestError


class Pushed(NamedTuple):
    """What one `TextStream.push` gave.

    Attributes:
        text: what can be shown now.
        stop: the stop string that was completed; the stream has then ended.
        used: how many of the pushed ids belong to the output: all of them, or up to and including the one that
            completed the stop string.
    """

    text: str
    stop: str | None
    used: int


class TextStream:
    """Incremental decoder of one generation; `Tokenizer.stream` makes it.

    Args:
        token_bytes: id → the bytes it stands for.
        hidden: ids that have no text.
        stop: stop strings; the one that is completed first wins, the longest among equals.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], hidden: Set[int], stop: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stops = [_Matcher(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""  # decoded, not shown: may be the beginning of a stop string
        self._ended = False

    def push(self, ids: Sequence[int]) -> Pushed:
        """Decode `ids`. After a stop string was completed, nothing more comes out and no id is used."""
        if self._ended:
            return Pushed("", None, 0)
        hidden, token_bytes = self._hidden, self._token_bytes
        if not self._stops:
            data = b"".join([token_bytes(i) for i in ids if i not in hidden])
            return Pushed(self._decode(data), None, len(ids))
        shown: list[str] = []
        for used, token_id in enumerate(ids, 1):
            if token_id in hidden:
                continue
            text, stop = self._scan(self._decode(token_bytes(token_id)))
            shown.append(text)
            if stop is not None:
                return Pushed("".join(shown), stop, used)
        return Pushed("".join(shown), None, len(ids))

    def finish(self) -> str:
        """The rest at the end of the generation: text held back, and U+FFFD for a character that was cut."""
        if self._ended:
            return ""
        rest, _ = self._scan(self._decode(b"", True))
        rest += self._held
        self._held = ""
        self._ended = True
        return rest

    def _scan(self, text: str) -> tuple[str, str | None]:
        """Text that can be shown after `text` arrived, and the stop string that it completed."""
        for position, char in enumerate(text):
            for matcher in self._stops:
                if matcher.step(char):
                    self._ended = True
                    before = self._held + text[: position + 1]
                    return before[: len(before) - len(matcher.text)], matcher.text
        text = self._held + text
        keep = len(text) - max(matcher.matched for matcher in self._stops) if self._stops else len(text)
        self._held = text[keep:]
        return text[:keep], None


class _Matcher:
    """Knuth–Morris–Pratt search for one string, one character at a time; `matched` characters are open."""

    __slots__ = ("_fail", "matched", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise RequestError("stop must not contain an empty string", param="stop")
        self.text = text
        self.matched = 0
        self._fail = [0] * len(text)  # longest proper border of text[: i + 1]
        border = 0
        for i in range(1, len(text)):
            while border and text[i] != text[border]:
                border = self._fail[border - 1]
            border += text[i] == text[border]
            self._fail[i] = border

    def step(self, char: str) -> bool:
        """Take one character; True when it completes the string."""
        matched = self.matched
        while matched and self.text[matched] != char:
            matched = self._fail[matched - 1]
        matched += self.text[matched] == char
        self.matched = matched
        return matched == len(self.text)
