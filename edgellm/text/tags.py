"""Finds the tags of an answer format in text that arrives in pieces.

What must stay true: a tag is never overlooked because the text was cut inside it; the work is linear in the text, the
text to keep until more comes is shorter than the longest tag.
"""

from __future__ import annotations

import re
from collections.abc import Collection


class Tags:
    """Args:
    tags: none of them is the beginning of another.
    """

    def __init__(self, tags: Collection[str]) -> None:
        self._tags = re.compile("|".join(map(re.escape, tags)) or r"(?!)")
        self._beginnings = frozenset(tag[:n] for tag in tags for n in range(1, len(tag)))
        self._reach = max(map(len, tags), default=1) - 1

    def search(self, text: str, at: int = 0) -> tuple[int, str]:
        """Where the next tag begins, and the tag.

        The tag is empty when there is none: text from that place on may then still become one.
        """
        found = self._tags.search(text, at)
        if found is not None:
            return found.start(), found[0]
        for start in range(max(at, len(text) - self._reach), len(text)):
            if text[start:] in self._beginnings:
                return start, ""
        return len(text), ""
