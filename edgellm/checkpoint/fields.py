"""Typed reading of JSON objects: one strict getter per kind of value.

What must stay true: a value of the wrong type or range raises `CheckpointError` naming the file and the field; nothing
is coerced (``true`` is not 1, ``64.0`` is not 64, ``"64"`` is not 64).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from edgellm.errors import CheckpointError

_MISSING: Final = object()
MAX_INT: Final = 2**31 - 1


class Fields:
    """A JSON object together with the name it has in error messages.

    Args:
        values: the decoded object.
        where: file and path, e.g. ``"config.json: text_config"``.
        fallback: object to look in when a field is absent here (older layouts keep some fields one level up).
    """

    def __init__(self, values: object, where: str, fallback: Fields | None = None) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} must be a JSON object, not {_kind(values)}")
        self.values: Mapping[str, Any] = values
        self.where = where
        self._fallback = fallback

    def get(self, name: str) -> Any:
        """The raw value, or None when the field is absent or null here and in the fallback."""
        value = self.values.get(name)
        if value is None and self._fallback is not None:
            return self._fallback.get(name)
        return value

    def child(self, name: str) -> Fields | None:
        """The object in field `name`, or None when absent or null."""
        value = self.get(name)
        return None if value is None else Fields(value, f"{self.where}.{name}")

    def integer(self, name: str, default: object = _MISSING, *, low: int = 1, high: int = MAX_INT) -> int:
        """An integer in [low, high]."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be an integer, not {_kind(value)}")
        if not low <= value <= high:
            raise self.error(name, f"must be between {low} and {high}, not {_clip(value)}")
        return value

    def number(self, name: str, default: object = _MISSING, *, low: float, high: float) -> float:
        """A finite number in the open interval (low, high)."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"must be a number, not {_kind(value)}")
        if not low < value < high:
            raise self.error(name, f"must be between {low} and {high}, not {_clip(value)}")
        result = float(value)
        if not math.isfinite(result):
            raise self.error(name, f"must be finite, not {result}")
        return result

    def boolean(self, name: str, default: object = _MISSING) -> bool:
        """``true`` or ``false``."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_kind(value)}")
        return value

    def text(self, name: str, default: object = _MISSING) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, not {_kind(value)}")
        return value

    def error(self, name: str, problem: str) -> CheckpointError:
        """The error to raise for field `name`."""
        return CheckpointError(f"{self.where}.{name} {problem}")

    def _value(self, name: str, default: object) -> object:
        value = self.get(name)
        if value is None:
            if default is _MISSING:
                raise self.error(name, "is missing")
            return default
        return value


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    for kind, name in names.items():
        if type(value) is kind:
            return name if kind is type(None) else f"{name} ({_clip(value)})"
    return "an array" if isinstance(value, list) else "an object"


def _clip(value: object) -> str:
    # Integers of thousands of digits cannot even be printed; show their size instead.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
