"""One call as a JSON object: ``{"name": …, "arguments": {…}}``.

* The name is that of a declared function. ``parameters`` means ``arguments``; what these may be says `arguments`. A
  call without them has none: ``{}``. Other members are read over. A repeated member counts once, its first time.
* The members come in any order. With the name known the arguments go out as they arrive, before that they wait for it.
  Before the name only arguments and a plain ``id`` or ``type`` may stand: other objects are not held back for long.
* JSON that is malformed is no call. When part of the arguments is out by then, they are closed and the call stays
  without an end. Behind whole arguments the rest of the object may be missing.
* When the turn ends inside the arguments and the name is known, what is open is closed; before that it is no call.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Final

from edgellm.text.dialects.arguments import Arguments
from edgellm.text.dialects.literals import JSON, Event, Kind, LiteralReader
from edgellm.text.dialects.reading import Call, Cursor, Reading, Step

_KNOWN: Final = frozenset(("name", "arguments", "parameters", "id", "type"))


class _Members:
    """Takes the events of the call's object, as long as it can be one."""

    def __init__(self, declared: Container[str]) -> None:
        self.name = ""
        self.arguments = Arguments()
        self._declared = declared
        self._given: set[str] = set()
        self._member = ""  # being read; empty for one that does not matter
        self._text: list[str] = []  # of the name

    @property
    def sure(self) -> bool:
        return bool(self.name) and self.arguments.begun

    def take(self, event: Event) -> bool:
        if event.depth == 0:
            return event.kind in (Kind.OBJECT, Kind.END)
        if event.depth == 1 and event.kind is Kind.KEY:
            return self._begin(json.loads(event.text))
        if self._member == "arguments":
            return self.arguments.take(event)
        if self._member == "name":
            return self._take_name(event)
        return bool(self.name) or event.kind not in (Kind.OBJECT, Kind.ARRAY)

    def _begin(self, key: str) -> bool:
        known = bool(self.name) or key in _KNOWN
        key = "arguments" if key == "parameters" else key
        self._member = "" if key in self._given else key
        self._given.add(key)
        return known

    def _take_name(self, event: Event) -> bool:
        if event.kind is not Kind.STRING_END:
            self._text.append(event.text)
            return event.kind in (Kind.STRING, Kind.TEXT)
        name = json.loads(f'"{"".join(self._text)}"')
        self.name = name if name in self._declared else ""
        return bool(self.name)


def json_call(cursor: Cursor, call: Call, declared: Container[str], *, lead: str = "") -> Reading[bool]:
    """Grammar of the call; `lead` is what was already read of it."""
    reader, members = LiteralReader(JSON), _Members(declared)
    for event in reader.read(lead, 0):
        members.take(event)
    while True:
        step = Step.OPEN
        for event in reader.read(cursor.text, cursor.at, final=cursor.final):
            if not members.take(event):
                step = Step.REFUSED
                break
        cursor.at = reader.at
        step = reader.step if step is Step.OPEN else step
        if step is Step.ENDED and members.name and not members.arguments.begun:
            members.arguments.none()
        if members.sure:
            call.begin(members.name)
            whole = members.arguments.whole
            if cursor.final or step is not Step.OPEN:
                members.arguments.close()
            call.write(members.arguments.text())
        if cursor.final or step is not Step.OPEN:
            return members.sure and (cursor.final or whole)
        yield
