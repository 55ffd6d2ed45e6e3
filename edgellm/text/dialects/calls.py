"""A call that is being read into an answer.

What must stay true: nothing of a call comes out before it is certain to be one; text that turns out to be none comes
out unchanged; a call that is broken off, or malformed after it was begun, gets no end, so that it does not run.
"""

from __future__ import annotations

from edgellm.text.answer import AnswerWriter
from edgellm.text.dialects.reading import CallReader, Grammar, Step


class LiveCall:
    """Args:
        answer: where the call, or its text, goes.
        grammar: reads it, from behind its opener on.
        opener: text that was already taken.

    Attributes:
        open: more text is needed.
    """

    def __init__(self, answer: AnswerWriter, grammar: Grammar, opener: str) -> None:
        self.open = True
        self._answer = answer
        self._reader = CallReader(grammar)
        self._held: list[str] | None = [opener]  # None once the call is begun

    def take(self, text: str, at: int) -> int:
        """Reads `text` from `at` on; returns the place behind what belongs to the call, or is text instead of one."""
        end = self._reader.take(text, at)
        if self._held is not None:
            self._held.append(text[at:end])
        self._put()
        return end

    def finish(self, rest: str, *, ended: bool) -> None:
        """At the end of the answer, with `rest` left unread: a begun call is closed when the model ended its turn."""
        if self._held is not None:
            self._answer.text("".join(self._held) + rest)
        elif ended:
            self._reader.end(rest)
            self._put()

    def _put(self) -> None:
        call, step = self._reader.call, self._reader.step
        if call.name and self._held is not None:
            self._answer.start_call(call.name)
            self._held = None
        if self._held is None:
            self._answer.arguments(call.arguments())
        if step is Step.OPEN:
            return
        self.open = False
        if self._held is None:
            self._answer.end_call(whole=step is Step.ENDED)
        else:
            self._answer.text("".join(self._held))
