"""The checkpoint's own chat template in a sandbox, with the functions that Hugging Face templates use.

What must stay true: the text is what transformers renders from the same template and values; a template can neither
reach Python objects nor change its input; whatever goes wrong in it is a `RequestError`.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgellm.errors import CheckpointError, RequestError
from edgellm.text.marks import MARK

_ESCAPED = re.compile(f"[^\x00-\x7f{MARK}]")


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """A compiled template; any thread may render. `source` is its text.

    Args:
        source: the template's text.
        name: what to call it in errors.

    Raises:
        CheckpointError: the template does not compile.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"{name}: {error}") from error

    def render(self, **values: Any) -> str:
        """The text.

        Raises:
            RequestError: the template refuses the messages (its own words are the message) or fails on them.
        """
        try:
            return self._template.render(**values)
        except _Refused as error:
            raise RequestError(f"chat template: {error}", param="messages", code="chat_template") from None
        except Exception as error:  # a template is a program of others: it may fail in any way
            message = f"chat template failed on these messages: {type(error).__name__}: {error}"
            raise RequestError(message, param="messages", code="chat_template") from error


def _raise(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates print it: not escaped for HTML. Marks stay what they are."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text
