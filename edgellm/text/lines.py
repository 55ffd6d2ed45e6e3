"""Where in its lines a text stands: what a rule about the start of a line, or about fenced code, needs to know."""

from __future__ import annotations

from typing import Final

_FENCES: Final = ("```", "~~~")


class LineTracker:
    """Feed text in any pieces.

    Attributes:
        at_start: no character of the current line was seen yet.
        in_fence: inside a fenced code block: an odd number of lines so far began with a fence.
    """

    def __init__(self) -> None:
        self.at_start = True
        self.in_fence = False
        self._head = ""  # first three characters of the current line, indentation aside

    @property
    def plain_start(self) -> bool:
        """At the start of a line outside fenced code."""
        return self.at_start and not self.in_fence

    def feed(self, text: str) -> None:
        for number, piece in enumerate(text.split("\n")):
            if number:
                self.at_start, self._head = True, ""
            if piece:
                self.at_start = False
                self._begin(piece)

    def _begin(self, piece: str) -> None:
        if len(self._head) == len(_FENCES[0]):
            return
        head = self._head + (piece if self._head else piece.lstrip(" "))[: len(_FENCES[0])]
        self._head = head[: len(_FENCES[0])]
        if self._head in _FENCES:
            self.in_fence = not self.in_fence
