"""Typed reading of request fields. A missing field and an explicit null are the same; a wrong type is an error.

Every error is a `RequestError` whose `param` is the full path of the field, e.g. ``messages[2].content[0].type``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgellm.errors import RequestError


def type_name(value: object) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong_type(path: str, wanted: str, value: object) -> RequestError:
    return RequestError(f"{path} must be {wanted}, got {type_name(value)}", param=path, code="invalid_type")


def bad_value(path: str, message: str) -> RequestError:
    """`message` follows the path: ``"must be …"``."""
    return RequestError(f"{path} {message}", param=path, code="invalid_value")


def unsupported(path: str, message: str) -> RequestError:
    """A field that is known but not implemented: never ignored silently."""
    return RequestError(f"{path}: {message}", param=path, code="unsupported_value")


class Fields:
    """Reader of one JSON object at `path` ("" for the body itself)."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path

    def at(self, name: str) -> str:
        """Full path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.at(name), "an integer", value)
        if not low <= value <= high:
            raise bad_value(self.at(name), f"must be between {low} and {high}, got {_shown(value)}")
        return value

    def number(self, name: str, low: float, high: float, *, above_low: bool = False) -> float | None:
        """A number in [low, high], or (low, high] with `above_low`."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong_type(self.at(name), "a number", value)
        if not low <= value <= high or (above_low and value == low):
            bound = f"greater than {low:g} and at most {high:g}" if above_low else f"between {low:g} and {high:g}"
            raise bad_value(self.at(name), f"must be {bound}, got {_shown(value)}")
        return float(value)

    def boolean(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.at(name), "a boolean", value)
        return value

    def string(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong_type(self.at(name), "a string", value)
        return value

    def array(self, name: str) -> list[Any] | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.at(name), "an array", value)
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise wrong_type(self.at(name), "an object", value)
        return value

    def fields(self, name: str) -> Fields | None:
        """A nested object as a reader."""
        value = self.object(name)
        return None if value is None else Fields(value, self.at(name))

    def objects(self, name: str) -> Iterator[Fields]:
        """The entries of an array, each as a reader; none when it is absent. An entry is looked at when it is taken."""
        for index, entry in enumerate(self.array(name) or ()):
            yield object_at(entry, f"{self.at(name)}[{index}]")

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Raise for the first of these fields that is present and not null, false, zero, "" or []."""
        for name, reason in reasons.items():
            if self.data.get(name) not in (None, False, 0, "", []):
                raise unsupported(self.at(name), reason)


def object_at(value: object, path: str) -> Fields:
    """Reader of a value that must be an object."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return Fields(value, path)


def _shown(value: float) -> str:
    text = str(value) if isinstance(value, float) or abs(value) < 10**30 else "a huge integer"
    return text[:40]
