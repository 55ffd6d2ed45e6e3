"""Schemas and grammars that would cost a compiler its stack or its time are refused before it sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from edgellm.errors import RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.text.grammars import Grammar, json_grammar, lark_grammar, regex_grammar
from edgellm.text.schemas import beyond_text
from edgellm.text.tokenizer import Tokenizer

CHAINS: dict[str, Callable[[Any], Any]] = {
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}},
    "items": lambda inner: {"type": "array", "items": inner},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "allOf": lambda inner: {"allOf": [inner, {"minLength": 1}]},
    "additionalProperties": lambda inner: {"type": "object", "additionalProperties": inner},
    "prefixItems": lambda inner: {"type": "array", "prefixItems": [inner]},
    "patternProperties": lambda inner: {"type": "object", "patternProperties": {"^a": inner}},
}


def chain(wrap: Callable[[Any], Any], length: int) -> dict[str, Any]:
    """Definitions that each lead to the next."""
    definitions = {f"d{n}": wrap({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "string"}}}


def doubled(length: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "string"}}}


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    made = Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids)
    made.make(json_grammar({}), param="x", thinking_open=False)
    return made


@pytest.mark.parametrize("keyword", CHAINS)
def test_long_chains_of_definitions(constraints: Constraints, keyword: str) -> None:
    assert constraints.make(json_grammar(chain(CHAINS[keyword], 250)), param="x", thinking_open=False)
    for length in (1500, 5000):
        with pytest.raises(RequestError, match="nested too deeply") as caught:
            json_grammar(chain(CHAINS[keyword], length))
        assert caught.value.code == "invalid_grammar"


def objects(count: int, width: int) -> dict[str, Any]:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(width)}}
    return {"type": "object", "properties": {f"o{n}": wide for n in range(count)}}


HOSTILE: dict[str, Callable[[], Grammar]] = {
    "a large enum": lambda: json_grammar({"enum": [f"value number {n}" for n in range(30000)]}),
    "many integers": lambda: json_grammar({"enum": list(range(50000))}),
    "a thousand properties": lambda: json_grammar(objects(1, 1000)),
    "many thousands": lambda: json_grammar(objects(1, 10000)),
    "many objects": lambda: json_grammar(objects(30, 1000)),
    "doublings": lambda: json_grammar(doubled(40)),
    "repetitions": lambda: json_grammar({"type": "string", "pattern": "((a{0,1000}){0,1000}){0,1000}"}),
    "many states": lambda: json_grammar({"type": "string", "pattern": "^(a|b)*a(a|b){30}$"}),
    "letters": lambda: json_grammar({"type": "string", "pattern": r"(\p{L}{1,100}\s){1,100}"}),
    "a long string": lambda: json_grammar({"type": "string", "minLength": 10**6}),
    "many items": lambda: json_grammar({"type": "array", "minItems": 10**6}),
    "a wide union": lambda: json_grammar({"anyOf": [objects(1, 1) for _ in range(2000)]}),
    "a product of unions": lambda: json_grammar({"allOf": [{"anyOf": [objects(1, n) for n in range(4)]}] * 10}),
    "brackets": lambda: regex_grammar("(" * 100_000 + "a" + ")" * 100_000),
    "rules": lambda: lark_grammar("start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(950)) + '\nr950: "b"'),
    "many rules": lambda: lark_grammar("start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(4000))),
    "many rules of GBNF": lambda: lark_grammar("\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(4000))),
    "deep GBNF": lambda: lark_grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "ambiguity": lambda: lark_grammar('start: s\ns: s s | s s s | "a" | ""'),
    "a grammar of ours": lambda: lark_grammar("start: @answer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_ready_or_refused_in_time(constraints: Constraints, name: str) -> None:
    start = time.thread_time()
    with suppress(RequestError):
        constraint = constraints.make(HOSTILE[name](), param="x", thinking_open=False)
        assert constraint is not None
        assert constraint.mask() is not None
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("source", ["root ::= (", "::=", 'root ::= "abc', "root ::= [a-", "root ::= \\"])
def test_what_is_no_gbnf_is_named(source: str) -> None:
    with pytest.raises(RequestError, match="is not GBNF"):
        lark_grammar(source)


@pytest.mark.parametrize("kind", [{"b": 1}, [{"b": 1}], [["string"]], 5, ["string", None, "sentence"]])
def test_a_type_that_is_none_is_named(kind: Any) -> None:
    assert "the type" in str(beyond_text({"type": kind}, {}))
