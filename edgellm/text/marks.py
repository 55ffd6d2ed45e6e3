"""Keeps the text of control tokens that a client wrote from becoming control tokens.

Strings are marked before the template sees them and restored when the rendered text is encoded: a mark inside
``<|im_end|>`` keeps it from being cut out as a token, and tells the encoder that the piece around it is plain text.
Marks are a Unicode noncharacter, which templates neither trim nor split at.

What must stay true: `restore` undoes `protect` exactly, whatever the text; no protected text contains, or together with
what a template puts behind it makes, the text of a token it is protected from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from edgellm.text.tokenizer import check_surrogates

MARK: Final = "\ufdd0"
_OWN: Final = "\ufdd1"  # behind a MARK that the text itself had
_MARKED: Final = re.compile(f"{MARK}({_OWN}?)")


class Protector:
    """Args:
    tokens: texts of the tokens to protect from.
    """

    def __init__(self, tokens: Collection[str]) -> None:
        literals = [re.escape(token) for token in tokens]
        self._start = re.compile(rf"(?=(?:{'|'.join(literals)})).", re.DOTALL) if literals else None
        self._beginnings = tuple({token[:n] for token in tokens for n in range(1, len(token))})

    def protect(self, text: str, where: str) -> str:
        """`text` with marks.

        Raises:
            RequestError: it has a lone surrogate; names `where`.
        """
        check_surrogates(text, where)
        if MARK in text:
            text = text.replace(MARK, MARK + _OWN)
        if self._start is not None:
            text = self._start.sub(lambda match: match[0] + MARK, text)
        return text + MARK if text.endswith(self._beginnings) else text

    def protect_all(self, value: Any, where: str) -> Any:
        """A JSON-like value with every string in it marked, keys too."""
        if isinstance(value, str):
            return self.protect(value, where)
        if isinstance(value, Mapping):
            return {
                self.protect(key, where) if isinstance(key, str) else key: self.protect_all(item, f"{where}.{key}")
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.protect_all(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return value


def restore(text: str) -> str:
    """`text` without marks."""
    return _MARKED.sub(lambda match: MARK if match[1] else "", text)
