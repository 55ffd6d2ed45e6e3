"""Grammars as masks: what fits gets through to the end, what does not is stopped, and bad grammars are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.decode.grammar import GrammarCompiler, GrammarConstraint
from edgellm.errors import RequestError
from edgellm.text.grammars import choice_grammar, framed, json_grammar, lark_grammar, regex_grammar
from edgellm.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "at": {"anyOf": [{"type": "null"}, {"type": "number"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_checkpoint("tiny", tmp_path_factory.mktemp("grammar") / "tiny"))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.to_json, vocab_size=tokenizer.vocab_size + 5, eos=tokenizer.eos_token_ids)


def fed(constraint: GrammarConstraint, tokenizer: Tokenizer, text: str) -> str:
    """ "refused", "open" or "complete"."""
    for token in tokenizer.encode(text, allow_special=True):
        mask = constraint.mask()
        assert len(mask) == tokenizer.vocab_size + 5
        assert not mask[tokenizer.vocab_size :].any()
        if not mask[token]:
            return "refused"
        constraint.advance(token)
    return "complete" if constraint.mask()[list(tokenizer.eos_token_ids)].all() else "open"


@pytest.mark.parametrize(
    ("grammar", "text", "outcome"),
    [
        (json_grammar(SCHEMA), '{"city": "Zürich\\n", "n": 3, "tags": ["a"], "at": null}', "complete"),
        (json_grammar(SCHEMA), '{\n  "city": "x",\n  "n": 3\n}', "complete"),
        (json_grammar(SCHEMA), '{"city":"x"}', "complete"),
        (json_grammar(SCHEMA), '{"city": "x"', "open"),
        (json_grammar(SCHEMA), '{"n": 3}', "refused"),
        (json_grammar(SCHEMA), '{"city": "x", "n": -1}', "refused"),
        (json_grammar(SCHEMA), '{"city": "x", "extra": 1}', "refused"),
        (json_grammar(SCHEMA), '{"city": "x"}\n\nThat is all.', "refused"),
        (json_grammar(SCHEMA), "Sure: {", "refused"),
        (json_grammar(SCHEMA), '{"city":' + " " * 30 + '"x"}', "refused"),
        (json_grammar(TREE), '{"children": [{"children": []}, {}]}', "complete"),
        (json_grammar({"type": "object"}), '{"any": [1, {"thing": null}]}', "complete"),
        (json_grammar({"type": "object"}), "[1]", "refused"),
        (regex_grammar("[a-z]+/\\d{2}"), "usr/42", "complete"),
        (regex_grammar("a\nb\\/c"), "a\nb/c", "complete"),
        (regex_grammar("[a-z]+"), "USR", "refused"),
        (choice_grammar(["yes", 'no "\n"', "<think>"]), 'no "\n"', "complete"),
        (choice_grammar(["yes", "no"]), "maybe", "refused"),
        (lark_grammar('start: "a" /[0-9]+/'), "a12", "complete"),
        (lark_grammar('root ::= "a" digits\ndigits ::= [0-9]+'), "a12", "complete"),
    ],
)
def test_what_gets_through(
    compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Any, text: str, outcome: str
) -> None:
    constraint = compiler.constraint(framed(grammar, behind_thinking=False), param="x")
    assert fed(constraint, tokenizer, text) == outcome
    behind = compiler.constraint(framed(grammar, behind_thinking=True), param="x")
    assert fed(behind, tokenizer, "\n\n" + text) == outcome


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "thing"},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "array", "uniqueItems": True},
        {"not": {"type": "string"}},
        {"enum": []},
        {"type": "integer", "minimum": 3, "maximum": 1},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": [1]},
        False,
    ],
)
def test_schemas_that_are_refused(compiler: GrammarCompiler, schema: Any) -> None:
    with pytest.raises(RequestError, match=r"response_format\.json_schema cannot be compiled") as caught:
        compiler.constraint(framed(json_grammar(schema), behind_thinking=False), param="response_format.json_schema")
    assert caught.value.param == "response_format.json_schema"
    assert caught.value.code == "invalid_grammar"


@pytest.mark.parametrize("grammar", [regex_grammar("("), lark_grammar("start: missing"), lark_grammar("nothing")])
def test_grammars_that_are_refused(compiler: GrammarCompiler, grammar: Any) -> None:
    with pytest.raises(RequestError, match="regex cannot be compiled"):
        compiler.constraint(framed(grammar, behind_thinking=False), param="regex")


def test_huge_but_lawful_schemas_are_cheap(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    doubled: Any = {"type": "string"}
    for _ in range(10):
        doubled = {"allOf": [doubled, doubled]}
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    for schema in (
        doubled,
        deep,
        {"type": "array", "maxItems": 18446744073709551615, "items": {"type": "integer"}},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "maxLength": 10**9},
    ):
        constraint = compiler.constraint(framed(json_grammar(schema), behind_thinking=False), param="x")
        assert constraint.mask().any()
    with pytest.raises(RequestError, match="too large"):
        compiler.constraint("x" * (1 << 21), param="grammar")


def test_constraints_of_one_grammar_do_not_share_their_place(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    text = framed(json_grammar(SCHEMA), behind_thinking=False)
    first, second = (compiler.constraint(text, param="x") for _ in range(2))
    assert fed(first, tokenizer, '{"city": "x"}') == "complete"
    assert fed(second, tokenizer, '{"city": "y"}') == "complete"


def test_after_the_end_only_the_end_is_left(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.constraint(framed(choice_grammar(["yes"]), behind_thinking=False), param="x")
    assert fed(constraint, tokenizer, "yes") == "complete"
    for _ in range(3):
        assert set(constraint.mask().nonzero()[0]) == set(tokenizer.eos_token_ids)
        constraint.advance(tokenizer.eos_token_ids[0])


VALUES = st.fixed_dictionaries(
    {"city": st.text(st.characters(exclude_characters="\x7f", codec="utf-8"), max_size=20)},
    optional={
        "n": st.integers(0, 10**9),
        "tags": st.lists(st.sampled_from("ab"), max_size=3),
        "at": st.none() | st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
    },
)


@settings(max_examples=100, deadline=None)
@given(value=VALUES, indent=st.sampled_from([None, 2, 4]))
def test_every_value_of_a_schema_can_be_written(
    compiler: GrammarCompiler, tokenizer: Tokenizer, value: Any, indent: int | None
) -> None:
    in_order = {name: value[name] for name in SCHEMA["properties"] if name in value}  # type: ignore[attr-defined]
    text = json.dumps(in_order, ensure_ascii=False, indent=indent)
    constraint = compiler.constraint(framed(json_grammar(SCHEMA), behind_thinking=False), param="x")
    assert fed(constraint, tokenizer, text) == "complete"
