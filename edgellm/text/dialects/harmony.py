"""gpt-oss: an answer is a run of messages, and the prompt ends behind the first ``<|start|>assistant``:
``<|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>TEXT<|end|>``.

Messages:
* A message begins with a header as above, of which only ``<|message|>``, and a start or a channel before it, must be
  there. Anything else that begins like a header is text and flows on.
* Channel ``analysis`` is reasoning, ``commentary`` and ``final`` are content. Text without a header is content, or
  reasoning when the prompt opened that. Messages of one kind that follow each other are separated by a line break.
* ``<|end|>``, ``<|return|>`` or ``<|call|>`` ends a message when, after white space, a header or the end of the answer
  follows; elsewhere it is text. A message without it ends where the next header begins.

Calls:
* A message to ``functions.NAME``, or ``NAME``, of a declared function is a call, in the analysis channel too: models
  put calls there, and the recipient is what tells a call from thoughts about one. The arguments follow the rules of
  `arguments`. A call ends with them: a missing ``<|call|>`` is forgiven.
* A message to anyone else, or without arguments, is text with its header.
* A call that turns out malformed after it was begun is closed and gets no end; the rest is text. At the end of the
  answer a begun call is closed and ended if the model ended its turn; one that was cut stays open.

White space at both ends of a message is dropped, but for that at the end of the answer.

What must stay true: how the text is cut into pieces changes nothing in the joined result; all text that is not part of
a tag or a call comes out; work and held-back memory are linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from edgellm.text.answer import AnswerWriter
from edgellm.text.deltas import ParsedDelta
from edgellm.text.dialects.arguments import json_arguments
from edgellm.text.dialects.calls import LiveCall
from edgellm.text.dialects.reading import Cursor, Reading, pieces
from edgellm.text.functions import functions
from edgellm.text.tags import Tags

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")

MARKERS: Final = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

_TAGS: Final = Tags((_START, _CHANNEL, *_ENDS))
_CHANNELS: Final = ("analysis", "commentary", "final")
# Every beginning of what these match is matched too, as `Cursor.word` asks.
_RECIPIENT: Final = re.compile(r" ?(?:to=[^\s<]*|t?o?)")
_ROLE: Final = re.compile(r"[a-z]*(?: (?:to=[^\s<]*|[a-z]*))?")
_WORDS: Final = re.compile(r" ?(?:to=[^\s<]*|[a-z]*)(?: (?:to=[^\s<]*|[a-z]*)){0,2} ?")
_GAP: Final = re.compile(r"\s{0,16}")

T = TypeVar("T")


@dataclass(frozen=True)
class _Header:
    reasoning: bool
    recipient: str


class HarmonyParser:
    """Implements `AnswerParser`. Feed decoded text in any pieces; deltas come out in order.

    Args:
        tools: the request's tools, in the OpenAI form.
        thinking_open: the prompt ended inside a message of the analysis channel.
        parse_tools: without it messages to functions are text.
        id_seed: call ids are a function of it and the call's index; random when empty.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], *, thinking_open: bool, parse_tools: bool = True, id_seed: str = ""
    ) -> None:
        self._functions = functions(tools) if parse_tools else {}
        self._answer = AnswerWriter(thinking_open=thinking_open, id_seed=id_seed)
        self._header_next = not thinking_open  # at the start of the answer, behind the prompt's <|start|>assistant
        self._tail = ""  # not read yet
        self._call: LiveCall | None = None

    @property
    def tool_calls(self) -> int:
        """Calls that have come out so far, complete or not."""
        return self._answer.calls

    def feed(self, text: str) -> list[ParsedDelta]:
        for piece in pieces(text):
            unread = self._tail + piece
            self._tail = unread[self._read(unread, final=False) :]
        return self._answer.flush()

    def finish(self, ended: bool) -> list[ParsedDelta]:
        """The end of the answer.

        Args:
            ended: whether the model ended its turn; otherwise it was cut (length, deadline, stop string, …).
        """
        if self._call is not None:
            self._call.finish(self._tail, ended=ended)
        else:
            self._answer.text(self._tail[self._read(self._tail, final=True) :])
        self._answer.finish()
        return self._answer.flush()

    def _read(self, text: str, *, final: bool) -> int:
        """Reads what can be read of `text`; returns the place behind it."""
        at = 0
        if self._header_next:
            end = self._begin_message("", text, 0, final)
            if end is None:
                return 0
            at, self._header_next = end, False
        while True:
            if self._call is not None:
                at = self._call.take(text, at)
                if self._call.open:
                    return at
                self._call = None
            start, tag = _TAGS.search(text, at)
            self._answer.text(text[at:start])
            act = self._end_message if tag in _ENDS else self._begin_message
            end = act(tag, text, start, final) if tag else None
            if end is None:
                return start
            at = end

    def _begin_message(self, tag: str, text: str, at: int, final: bool) -> int | None:
        """Reads a header that begins with `tag`, or text instead: the place behind it, None when more is needed."""
        cursor = Cursor(text, at + len(tag), final=final)
        result = _result(_header(cursor, tag))
        if result is None:
            return None
        header, raw = result[0], text[at : cursor.at]
        if header is None:
            self._answer.text(raw)
            return cursor.at
        self._answer.enter(reasoning=header.reasoning)
        name = header.recipient.removeprefix("functions.")
        if name in self._functions:
            self._call = LiveCall(self._answer, lambda cursor, call: json_arguments(cursor, call, name), raw)
        elif header.recipient:
            self._answer.text(raw)
        return cursor.at

    def _end_message(self, tag: str, text: str, at: int, final: bool) -> int | None:
        """Drops `tag` where it ends a message, else it is text: the place behind it, None when that is not decided."""
        cursor = Cursor(text, at + len(tag), final=final)
        result = _result(_at_message_end(cursor))
        if result is None:
            return None
        if not result[0] and not self._answer.behind_call:
            self._answer.text(tag)
        return at + len(tag)


def _header(cursor: Cursor, tag: str) -> Reading[_Header | None]:
    """A header from behind its first tag on, empty behind the prompt; None when it is none."""
    words, channel = "", "final"
    if tag != _CHANNEL:
        words = yield from cursor.word(_ROLE if tag else _RECIPIENT)
        if tag and words.split(" ")[0] != "assistant":
            return None
        tag = yield from cursor.literal(_CHANNEL, _MESSAGE)
    if tag == _CHANNEL:
        said = yield from cursor.word(_WORDS)
        channel = said.split()[0] if said.strip() else ""
        words = f"{words} {said}"
        tag = yield from cursor.literal(_CONSTRAIN, _MESSAGE)
        if tag == _CONSTRAIN:
            yield from cursor.word(_WORDS)
            tag = yield from cursor.literal(_MESSAGE)
    if tag != _MESSAGE or not (channel in _CHANNELS or channel.startswith("to=")):
        return None
    recipient = next((word[3:] for word in words.split() if word.startswith("to=")), "")
    return _Header(channel == "analysis", recipient)


def _at_message_end(cursor: Cursor) -> Reading[bool]:
    """Whether a header or the end of the answer follows."""
    yield from cursor.word(_GAP)
    return bool((yield from cursor.literal(_START, _CHANNEL))) or (cursor.final and not cursor.char)


def _result(reading: Reading[T]) -> tuple[T] | None:
    """What a reading of the text at hand gives, in a tuple; None when it needs more text."""
    try:
        next(reading)
    except StopIteration as stop:
        return (stop.value,)
    return None
