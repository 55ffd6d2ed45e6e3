"""First lines of a system prompt that differ from session to session and would spoil the prefix cache.

Claude Code sends ``x-anthropic-billing-header: cc_version=…; …`` as the first line, or as a text block of its own in
front. It tells the model nothing, and no two sessions would share the long prompt behind it. Rules:
* A pattern must match at the start of the system prompt, behind leading white space. What it matches is removed, once,
  and with it that white space.
* The default pattern is the header's whole line with its line end, or to the end of the text where there is none. Case
  and colon are as Claude Code writes them; a second such line, or one further down, stays.
* In a list of text blocks only the first one is looked at; a block that becomes empty is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edgellm.errors import ConfigError

BILLING_HEADER: Final = r"x-anthropic-billing-header:[^\r\n]*(?:\r?\n)?"


class Stripped(NamedTuple):
    value: Any  # of the form that was given: a string or a list of blocks
    removed: bool


@dataclass(frozen=True, slots=True)
class Preambles:
    """Args:
        patterns: regular expressions; none: nothing is removed.

    Raises:
        ConfigError: a pattern does not compile; names it.
    """

    patterns: tuple[re.Pattern[str], ...] = (re.compile(BILLING_HEADER),)

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Preambles:
        compiled = []
        for pattern in patterns:
            try:
                compiled.append(re.compile(pattern))
            except re.error as error:
                raise ConfigError(f"preamble: {pattern!r} is no regular expression: {error}") from None
        return cls(tuple(compiled))

    def strip(self, system: Any) -> Stripped:
        """The system prompt of a request without its preamble. What is neither text nor blocks is left as it is."""
        if isinstance(system, str):
            return self._strip_text(system)
        if not isinstance(system, list) or not system:
            return Stripped(system, False)
        first, *rest = system
        text = first.get("text") if isinstance(first, dict) else None
        if not isinstance(text, str):
            return Stripped(system, False)
        stripped = self._strip_text(text)
        if not stripped.removed:
            return Stripped(system, False)
        return Stripped([{**first, "text": stripped.value}, *rest] if stripped.value else rest, True)

    def _strip_text(self, text: str) -> Stripped:
        body = text.lstrip()
        for pattern in self.patterns:
            found = pattern.match(body)
            if found is not None and found.end() > 0:
                return Stripped(body[found.end() :], True)
        return Stripped(text, False)
