"""Whether the JSON of a value, read as it arrives, stops inside a string: a tag there is text, whatever follows it."""

from __future__ import annotations

import re
from typing import Final

from edgellm.text.values import STRING, Types

_MARKS: Final = re.compile(r'["\\\n]')


class OpenString:
    """Follows the text of one value.

    Only objects and arrays of values that may be more than strings are looked into. A raw line break closes a string:
    JSON has none inside strings, so that a quote too many does harm on its own line only.

    Args:
        types: what the schema allows.
    """

    def __init__(self, types: Types) -> None:
        self._looked_into: bool | None = False if types == STRING else None  # None: nothing but white space yet
        self._escaped = False
        self.inside = False

    def add(self, text: str) -> None:
        """The next part of the value."""
        if self._looked_into is None and (start := text.lstrip()):
            self._looked_into = start[0] in "[{"
        if not self._looked_into:
            return
        if not text:
            return
        position, self._escaped = int(self._escaped), False
        while (mark := _MARKS.search(text, position)) is not None:
            position = mark.end()
            match mark.group():
                case "\n":
                    self.inside = False
                case '"':
                    self.inside = not self.inside
                case _ if self.inside:
                    position += 1
                    self._escaped = position > len(text)
