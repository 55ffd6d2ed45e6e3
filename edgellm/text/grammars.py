"""What an answer may look like, as grammars in llguidance's form: JSON, regular expressions, choices, Lark.

A grammar is a mapping with one of llguidance's keys, ``json_schema`` or ``lark_grammar``, or with ``either`` and a list
of grammars; its Lark may refer to those under ``parts`` as ``@name``. `framed` makes the text that is compiled.
What must stay true: a schema means what JSON Schema says, except that white space between JSON tokens is short (a model
that is only allowed white space may go on with it for ever), and a keyword that cannot be obeyed is an error of the
compiler, never ignored, unless `lenient` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.schemas import check_schema

Grammar = Mapping[str, Any]

# A model writes a text in the tokens it has learnt; without the option it is held to those llguidance would take.
HEADER: Final = '%llguidance {"no_forcing": true}\n'
# Rules that each lead to the next take the compiler's stack, thousands of them all of it; reading GBNF is quadratic.
MAX_LINES: Final = 1000
MAX_SOURCE: Final = 1 << 17  # characters
_SPACE: Final = r"\r?\n[ \t]{0,40}|[ \t]{1,4}"


def json_schema(schema: Any, *, lenient: bool = False) -> Any:
    """`schema` with the settings that every schema of ours is compiled with.

    Args:
        schema: a JSON schema; anything that is no object allows every JSON value.
        lenient: ignore keywords that llguidance does not know, and let ``oneOf`` mean ``anyOf``.
    """
    options = {"whitespace_pattern": _SPACE, "lenient": lenient, "coerce_one_of": lenient}
    return {**(schema if isinstance(schema, Mapping) else {}), "x-guidance": options}


def json_grammar(schema: Any) -> Grammar:
    """JSON that fits a schema.

    Raises:
        RequestError: it is too large or nested too deeply to be compiled; the field is not named.
    """
    check_schema(schema)
    return {"json_schema": json_schema(schema) if isinstance(schema, Mapping) else schema}


def regex_grammar(pattern: str) -> Grammar:
    """Text that a regular expression (of Rust's regex syntax) matches as a whole."""
    return {"lark_grammar": f"{HEADER}start: /{slashed(pattern)}/"}


def choice_grammar(choices: Sequence[str]) -> Grammar:
    """One of several texts."""
    return {"lark_grammar": f"{HEADER}start: {' | '.join(quoted(choice) for choice in choices)}"}


def lark_grammar(source: str) -> Grammar:
    """A grammar that a client wrote: Lark, or GBNF, which has ``::=``.

    Raises:
        RequestError: it is too large, or not GBNF after all; the field is not named.
    """
    lines = source.count("\n") + source.count("::=")
    if len(source) > MAX_SOURCE or lines > MAX_LINES:
        raise _refused(f"is too large: at most {MAX_SOURCE} characters and {MAX_LINES} lines")
    if "::=" in source:
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        try:
            source = any_to_lark(source)
        except GbnfToLarkError as error:
            raise _refused(f"is not GBNF: {error}") from None
        except RecursionError:
            raise _refused("is nested too deeply") from None
    return {"lark_grammar": source}


def either(*grammars: Grammar) -> Grammar:
    """What one of several grammars, themselves no choices, lets through."""
    return {"either": list(grammars)}


def framed(grammar: Grammar, *, behind_thinking: bool) -> str:
    """The text to compile.

    Args:
        grammar: of the answer.
        behind_thinking: the answer follows a reasoning block: it may begin with an empty line.
    """
    lead = '"\\n\\n"? ' if behind_thinking else ""
    bodies = {f"body{n}": dict(body) for n, body in enumerate(grammar.get("either", [grammar]))}
    parts = {name: part for body in bodies.values() for name, part in body.pop("parts", {}).items()}
    start = " | ".join(f"@{name}" for name in bodies)
    head = {"answer": {"lark_grammar": f"{HEADER}start: {lead}({start})"}}
    named = [{"name": name, **body} for name, body in (head | bodies | parts).items()]
    return json.dumps({"grammars": named}, ensure_ascii=False)


def quoted(text: str) -> str:
    """`text` as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def slashed(pattern: str) -> str:
    """`pattern` between slashes: a bare one would end it, and so would a line break."""
    out: list[str] = []
    escaped = False
    for char in pattern:
        if char in "/\n" and not escaped:
            out.append("\\/" if char == "/" else "\\n")
        else:
            out.append("n" if char == "\n" else char)
        escaped = char == "\\" and not escaped
    return "".join(out)


def _refused(problem: str) -> RequestError:
    return RequestError(f"the grammar {problem}", code="invalid_grammar")
