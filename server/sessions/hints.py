"""What a request says of how it is to be scheduled: `nvext` in its body, routing headers in front of it.

What must stay true: a header goes before the body; two fields of a body that mean the same may not differ; a value that
is wrong is an error that names its field or header; nothing here changes an answer but `max_thinking_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from edgellm.runtime.types import Request
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.parameters import NO_REASONING, Parameters
from edgellm.server.sampling import read_count
from edgellm.server.sessions.identity import MAX_ID_BYTES, usable
from edgellm.server.sessions.nvext import AGENT_HINTS, EXTRA_FIELDS, NVEXT
from edgellm.server.structured import THINKING_BUDGETS

_Value = TypeVar("_Value", int, str)
_I32: Final = (-(2**31), 2**31 - 1)
_U32: Final = (0, 2**32 - 1)
_TIER: Final = 2**33  # of engine priorities: more than any two priorities differ by
_PRIORITY: Final = "x-dynamo-request-priority"
_STRICT: Final = "x-dynamo-request-strict-priority"
_TENANT: Final = "x-tenant-id"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Hints:
    """None: not said.

    Attributes:
        priority: higher is sooner, 32 bits; `strict_priority` goes before any priority.
        osl: tokens that the answer is expected to have.
        salt: tenant; prefixes are never shared across salts.
        max_thinking_tokens: reasoning is closed after that many.
        extra: what the answer's `nvext` is to have.
    """

    priority: int | None = None
    strict_priority: int | None = None
    osl: int | None = None
    salt: str | None = None
    max_thinking_tokens: int | None = None
    extra: frozenset[str] = frozenset()

    @property
    def engine_priority(self) -> int:
        """Both priorities as one, for `Request.priority`."""
        return (self.strict_priority or 0) * _TIER + (self.priority or 0)

    def behind(self, first: Hints) -> Hints:
        """These, where `first` says nothing."""
        return Hints(
            self.priority if first.priority is None else first.priority,
            self.strict_priority if first.strict_priority is None else first.strict_priority,
            self.osl if first.osl is None else first.osl,
            self.salt if first.salt is None else first.salt,
            self.max_thinking_tokens if first.max_thinking_tokens is None else first.max_thinking_tokens,
            self.extra | first.extra,
        )


NO_HINTS: Final = Hints()


def read_hints(fields: Fields, *, reasoning: bool = True) -> Hints:
    """`nvext` of a body, with the body's own `cache_salt` and thinking budget.

    Args:
        reasoning: an answer may have some; without it a thinking budget is refused.

    Raises:
        RequestError: naming the field, e.g. ``nvext.agent_hints.priority``.
    """
    salt = fields.string("cache_salt")
    thinking = read_count(fields, *THINKING_BUDGETS, low=0) if reasoning else None
    nvext = fields.fields("nvext")
    if nvext is None:
        return Hints(salt=salt, max_thinking_tokens=thinking)
    _only(nvext, NVEXT)
    if not reasoning:
        nvext.refuse({"max_thinking_tokens": NO_REASONING})
    hints = nvext.fields("agent_hints") or Fields({}, nvext.at("agent_hints"))
    _only(hints, AGENT_HINTS)
    return Hints(
        hints.integer("priority", *_I32),
        hints.integer("strict_priority", *_U32),
        hints.integer("osl", *_U32),
        _same(nvext, "cache_salt", nvext.string("cache_salt"), salt),
        _same(nvext, "max_thinking_tokens", nvext.integer("max_thinking_tokens", *_U32), thinking),
        _extra(nvext),
    )


def hinted(request: Request, hints: Hints) -> Request:
    """The request as `hints` want it scheduled."""
    cache = request.cache if hints.salt is None else replace(request.cache, salt=hints.salt)
    return replace(request, priority=hints.engine_priority, cache=cache)


def header_hints(headers: Iterable[tuple[bytes, bytes]]) -> Hints:
    """Routing headers; `headers` as in ASGI, names in lower case. An empty value counts as an absent header.

    Raises:
        RequestError: naming the header.
    """
    given: dict[str, bytes] = {}
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1")
        if name in (_PRIORITY, _STRICT, _TENANT) and (value := raw.strip()):
            given.setdefault(name, value)
    if not given:
        return NO_HINTS
    return Hints(
        _integer_header(given, _PRIORITY, *_I32),
        _integer_header(given, _STRICT, *_U32),
        salt=_tenant(given),
    )


def _integer_header(given: dict[str, bytes], name: str, low: int, high: int) -> int | None:
    if name not in given:
        return None
    text = given[name].decode("latin-1")
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise bad_value(name, f"must be an integer between {low} and {high}, got {text[:40]!r}")
    return int(text)


def _tenant(given: dict[str, bytes]) -> str | None:
    if _TENANT not in given:
        return None
    tenant = usable(given[_TENANT])
    if tenant is None:
        raise bad_value(_TENANT, f"must be UTF-8 without control characters, at most {MAX_ID_BYTES} bytes")
    return tenant


def _only(fields: Fields, table: Parameters) -> None:
    fields.refuse(table.refused)
    for name in fields.data:
        if name not in table.honoured and name not in table.refused and name not in table.ignored:
            raise unsupported(fields.at(name[:100]), f"unknown; known are {', '.join(sorted(table.honoured))}")


def _extra(nvext: Fields) -> frozenset[str]:
    path = nvext.at("extra_fields")
    for index, name in enumerate(names := nvext.array("extra_fields") or []):
        where = f"{path}[{index}]"
        if not isinstance(name, str):
            raise wrong_type(where, "a string", name)
        if name not in EXTRA_FIELDS.honoured:
            reason = EXTRA_FIELDS.refused.get(name, f"unknown; known are {', '.join(sorted(EXTRA_FIELDS.honoured))}")
            raise unsupported(where, f"{name[:100]}: {reason}")
    return frozenset(names)


def _same(nvext: Fields, name: str, value: _Value | None, top: _Value | None) -> _Value | None:
    if value is not None and top is not None and value != top:
        raise bad_value(nvext.at(name), f"and {name} at the top level are both set and differ")
    return top if value is None else value
