"""The arguments of a call in the JSON-like dialects: an object, a string that holds one, or null for none.

* An object goes out while it arrives, as `objects` says. A string is read when it is whole: it must hold an object, or
  nothing but white space for none. Everything else is no arguments, and so no call.
* When the turn ends inside an object, what is open is closed.
"""

from __future__ import annotations

import json

from edgellm.text.dialects.literals import JSON, Event, Kind, LiteralReader
from edgellm.text.dialects.objects import ObjectWriter
from edgellm.text.dialects.reading import Call, Cursor, Reading, Step


class Arguments:
    """Takes the events of the arguments' value.

    Attributes:
        begun: they are certain to be arguments.
        whole: they are complete.
    """

    def __init__(self) -> None:
        self.begun = False
        self.whole = False
        self._object: ObjectWriter | None = None
        self._packed: list[str] | None = None  # a string that holds them
        self._text = ""

    def take(self, event: Event) -> bool:
        """Whether the value can still be arguments."""
        if self._object is not None:
            self._object.take(event)
            self.whole = self._object.whole
        elif self._packed is not None:
            self._packed.append(event.text)
            return event.kind is not Kind.STRING_END or self._unpack("".join(self._packed))
        elif event.kind is Kind.OBJECT:
            self.begun = True
            self._object = ObjectWriter()
            self._object.take(event)
        elif event.kind is Kind.STRING:
            self._packed = []
        else:
            return event.kind is Kind.SCALAR and event.text == "null" and self._unpack("")
        return True

    def text(self) -> str:
        """JSON that may go out since the last time."""
        text, self._text = self._text, ""
        return text + (self._object.text() if self._object else "")

    def close(self) -> None:
        """The turn ended: closes the object."""
        if self._object is not None:
            self._object.close()
            self.whole = True

    def none(self) -> None:
        """The call has no arguments."""
        self._unpack("")

    def _unpack(self, inside: str) -> bool:
        text = json.loads(f'"{inside}"')
        if not text.strip():
            self._text, self.begun, self.whole = "{}", True, True
            return True
        reader, self._object = LiteralReader(JSON), ObjectWriter()
        for event in reader.read(text, 0, final=True):
            if event.depth == 0 and event.kind not in (Kind.OBJECT, Kind.END):
                return False
            self._object.take(event)
        self.begun = self.whole = reader.step is Step.ENDED and not text[reader.at :].strip()
        return self.whole


def json_arguments(cursor: Cursor, call: Call, name: str) -> Reading[bool]:
    """Grammar of the arguments of a call to the declared function `name`, whose name stood before them."""
    yield from cursor.space()
    if cursor.char not in ("{", '"'):
        return False
    reader, arguments = LiteralReader(JSON), Arguments()
    while True:
        for event in reader.read(cursor.text, cursor.at, final=cursor.final):
            cursor.at = reader.at
            if not arguments.take(event):
                return False
        cursor.at = reader.at
        stopped = cursor.final or reader.step is not Step.OPEN
        if arguments.begun:
            call.begin(name)
            if stopped:
                arguments.close()
            call.write(arguments.text())
        if stopped:
            return arguments.begun and (cursor.final or reader.step is Step.ENDED)
        yield
