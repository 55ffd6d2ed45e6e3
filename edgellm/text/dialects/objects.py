"""The JSON text of one object, written while its events arrive.

* One line, in the spacing of Python's json module; numbers and strings keep their text.
* A repeated key keeps its first value, at every level: the first may already be on its way.
* A string that is a member of the object itself goes out as it arrives. Any other member goes out when it is whole.

What must stay true: after `close` what went out is a JSON object without repeated keys, wherever the events stopped;
held-back memory is linear in the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from edgellm.text.dialects.literals import Event, Kind


@dataclass
class _Level:
    closer: str
    filled: bool = False
    keys: set[str] = field(default_factory=set)


class ObjectWriter:
    """Takes the events of one object, its own first.

    Attributes:
        whole: the object is complete.
    """

    def __init__(self) -> None:
        self.whole = False
        self._ready: list[str] = []
        self._held: list[str] = []  # of a member that may not go out yet
        self._levels: list[_Level] = []
        self._in_string = False
        self._needs_value = False  # a key was written
        self._dropped_at = -1  # depth of the value that is left out: its key is a repeated one

    def take(self, event: Event) -> None:
        if self._dropped_at >= 0:
            if event.depth == self._dropped_at and event.kind in (Kind.SCALAR, Kind.STRING_END, Kind.END):
                self._dropped_at = -1
            return
        match event.kind:
            case Kind.KEY:
                self._key(event)
            case Kind.OBJECT | Kind.ARRAY:
                self._begin_value("{" if event.kind is Kind.OBJECT else "[")
                self._levels.append(_Level("}" if event.kind is Kind.OBJECT else "]"))
            case Kind.END:
                self._held.append(self._levels.pop().closer)
            case Kind.STRING:
                self._begin_value('"')
                self._in_string = True
            case Kind.TEXT:
                self._held.append(event.text)
            case Kind.STRING_END:
                self._held.append('"')
                self._in_string = False
            case Kind.SCALAR:
                self._begin_value(event.text)
        self.whole = not self._levels
        if len(self._levels) <= 1 and not self._needs_value:
            self._release()

    def text(self) -> str:
        """What may go out since the last time."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def close(self) -> None:
        """No more events come: closes what is open. A member that has a key without a value is left out."""
        if self.whole:
            return
        if self._in_string:
            self._held.append('"')
        if self._needs_value:
            self._held.clear()
        else:
            self._held += [level.closer for level in reversed(self._levels[1:])]
        self._held.append("}")
        self.whole = True
        self._release()

    def _key(self, event: Event) -> None:
        level, key = self._levels[-1], json.loads(event.text)
        if key in level.keys:
            self._dropped_at = event.depth
            return
        level.keys.add(key)
        self._held.append(f"{', ' if level.filled else ''}{event.text}: ")
        level.filled = self._needs_value = True

    def _begin_value(self, text: str) -> None:
        if self._levels and self._levels[-1].closer == "]":
            self._held.append(", " if self._levels[-1].filled else "")
            self._levels[-1].filled = True
        self._needs_value = False
        self._held.append(text)

    def _release(self) -> None:
        self._ready += self._held
        self._held.clear()
