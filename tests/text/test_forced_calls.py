"""Forced calls against careless tools and a hostile model: what gets through is read as calls that fit."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from constrained import passes
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import parse

from edgellm.errors import RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars

CALL = "<tool_call>\n<function=f>\n{}</function>\n</tool_call>"
GLM = "<tool_call>f\n{}</tool_call>"
HERMES = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids)


class Forced:
    """The grammar of calls of one tool ``f``."""

    def __init__(self, constraints: Constraints, tokenizer: Tokenizer, parameters: Any, dialect: str, **more: Any):
        self.tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, **more}}]
        self.grammars = ToolGrammars(dialect, tokenizer.split, tokenizer.added)
        self.dialect, self.constraints, self.tokenizer = dialect, constraints, tokenizer

    def passes(self, text: str, *, free: bool = False, plain: bool = False) -> bool:
        """`plain`: what looks like a token of the tokenizer is spelled as text."""
        grammar = self.grammars.free(self.tools) if free else self.grammars.forced(self.tools, several=True)
        constraint = self.constraints.make(grammar, param="tool_choice", thinking_open=False)
        return passes(constraint, self.tokenizer, text, plain=plain)

    def read(self, text: str) -> Any:
        """The arguments of the only call; nothing else may come out."""
        answer = parse(text, self.tools, dialect=self.dialect)
        assert (answer.content, len(answer.calls), answer.ended) == ("", 1, [0])
        return answer.arguments()[0][1]


@pytest.fixture
def forced(constraints: Constraints, tokenizer: Tokenizer) -> Any:
    def make(parameters: Any, dialect: str = "qwen3_coder", **more: Any) -> Forced:
        return Forced(constraints, tokenizer, parameters, dialect, **more)

    return make


def tagged(**values: str) -> str:
    return CALL.format("".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in values.items()))


NODE = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}
CARELESS: list[tuple[Any, dict[str, str], dict[str, str] | None]] = [
    # a schema, values that fit, values that do not
    ({"properties": {"a": {"type": "string"}}, "required": True}, {"a": "x"}, {"b": "x"}),
    ({"properties": {"a": {"type": "string"}}, "required": "all"}, {}, {"l": "x"}),
    ({"properties": {"a": {"type": "string"}}, "required": [{}, 3, "a"]}, {"a": "x"}, {}),
    ({"properties": None, "required": None}, {}, {"a": "x"}),
    ({"properties": {"a": {"type": "string"}}, "required": ["b"]}, {"a": "x", "b": "y"}, {"a": "x"}),
    ({"required": ["b"], "additionalProperties": {"type": "integer"}}, {"b": "3"}, {"b": "x"}),
    ({"type": "dict", "properties": {"a": {"type": "int"}}}, {"a": "3"}, {"a": "x"}),
    ({"properties": {"a": {"type": "dict", "properties": {"b": {"type": "float"}}}}}, {"a": '{"b": 1.5}'}, {"a": "3"}),
    ({"properties": {"a": {"type": "any"}}}, {"a": "x"}, None),
    ({"properties": {"a": {"type": "array", "items": {"type": "any"}}}}, {"a": '["x", 3]'}, {"a": "{}"}),
    ({"properties": {"a": {**NODE, "required": None, "title": None}}}, {"a": "{}"}, {"a": "x"}),
    ({"properties": {"a": {"type": "integer", "nullable": True}}}, {"a": "3"}, {"a": "x"}),
    ({"properties": {"a": NODE, "b": {"$ref": "#/properties/a"}}}, {"b": '{"row": 3}'}, {"b": "{}"}),
    (
        {"properties": {"a": {"type": "array", "items": NODE}, "b": {"$ref": "#/properties/a/items"}}},
        {"b": '{"row": 3}'},
        {"b": "{}"},
    ),
    (
        {"properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#"}}}},
        {"n": "1", "below": '[{"n": 2, "below": []}]'},
        {"below": '[{"n": "x"}]'},
    ),
    ({"$ref": "#/$defs/args", "$defs": {"args": NODE}}, {"row": "3"}, {}),
    ({"properties": {"a": {"$ref": "#/$defs/mode"}}, "$defs": {"mode": {"enum": ["r", "w"]}}}, {"a": "r"}, {"a": "x"}),
    ({"properties": {"a": {"anyOf": [{"enum": ["r", "w"]}, {"type": "null"}]}}}, {"a": "null"}, {"a": "x"}),
    ({"properties": {"a": {"anyOf": [{"const": "r"}, {"const": "w"}]}}}, {"a": "w"}, {"a": "x"}),
    ({"properties": {"a": {"allOf": [{"const": "r"}]}}}, {"a": "r"}, {"a": "x"}),
    ({"properties": {"a": {"enum": [1, "x", None, True]}}}, {"a": "1"}, {"a": "2"}),
    ({"properties": {"a": {"enum": ["", "x\ny"]}}}, {"a": "x\ny"}, {"a": "x"}),
    ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, {"a": "3"}, {"a": "x"}),
    ({"properties": {'a"b': {"type": "integer"}, "é 日": {"type": "string"}}}, {'a"b': "3", "é 日": "x"}, {'a"b': "x"}),
    ({"properties": {"a": False, "c\nd": {}, "<e>": {}, "": {}, " f": {}, "g": {}}}, {"g": "x"}, {"a": "x"}),
    ({"properties": {"a": {"type": "integer", "x-guidance": {"no": 1}}}, "x-guidance": 3}, {"a": "3"}, {"a": "x"}),
]


@pytest.mark.parametrize(("parameters", "good", "bad"), CARELESS, ids=range(len(CARELESS)))
def test_careless_schemas(forced: Any, parameters: Any, good: dict[str, str], bad: dict[str, str] | None) -> None:
    calls = forced(parameters)
    assert calls.passes(tagged(**good))
    assert calls.read(tagged(**good)).keys() == good.keys()
    assert bad is None or not calls.passes(tagged(**bad))
    hermes = forced(parameters, "hermes")
    arguments = json.dumps(calls.read(tagged(**good)), ensure_ascii=False)
    assert hermes.passes(HERMES.format(arguments)), arguments


@pytest.mark.parametrize("name", ["c\nd", "<e>", "", " f", "x" * 300])
def test_a_required_parameter_that_no_tag_can_carry_is_named(forced: Any, name: str) -> None:
    with pytest.raises(RequestError, match="cannot be written") as caught:
        forced({"properties": {name: {"type": "string"}}, "required": [name]}).passes("")
    assert caught.value.param == "tools"


TWO = {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a", "n"]}
TAGS = ["</parameter>", "<parameter=n>", "<parameter=x>", "</function>", "</tool_call>", "<tool_call>", "<function=f>"]
GLM_TAGS = ["</arg_value>", "<arg_key>", "</arg_key>", "<arg_value>", "</tool_call>", "<tool_call>", "n", "f"]


def soup(tags: list[str]) -> Any:
    return st.lists(st.sampled_from([*tags, "\n", " ", "\x1c", "x", "7"]), max_size=9).map("".join)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), dialect=st.sampled_from(["qwen3_coder", "glm45"]), plain=st.booleans())
def test_no_text_of_a_value_breaks_out_of_it(
    constraints: Constraints, tokenizer: Tokenizer, data: st.DataObject, dialect: str, plain: bool
) -> None:
    calls = Forced(constraints, tokenizer, TWO, dialect)
    value = data.draw(soup(TAGS if dialect == "qwen3_coder" else GLM_TAGS))
    text = tagged(a=value, n="3")
    if dialect == "glm45":
        pairs = (("a", value), ("n", "3"))
        text = GLM.format("".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in pairs))
    if calls.passes(text):
        assert calls.read(text) == {"a": value, "n": 3}


def test_ordinary_tags_may_stand_in_a_value(forced: Any) -> None:
    for value in ("</parameter>", "a </parameter> b", "</function>\n</tool_call> x", "say <parameter=n>", "<b>x</b>"):
        text = tagged(a=value, n="3")
        assert forced(TWO).passes(text, plain=False) or "tool_call" in value
        assert forced(TWO).read(text) == {"a": value, "n": 3}


def test_a_strict_tool_is_not_called_past_its_grammar(forced: Any) -> None:
    """A parser reads some calls that begin with no token of their own; they would be held to nothing."""
    calls = forced(TWO, strict=True)
    bare = "<function=f>\n<parameter=n>\nmany\n</parameter>\n</function>"
    for text in (bare, f"I call:\n{bare}", bare.replace("=f>", "= f >")):
        assert not calls.passes(text, free=True)
    assert calls.passes("Write <function=g> or <parameter=n>.", free=True)
    assert not calls.passes(f"<tool_call>\n{bare}", free=True)


def test_a_quote_in_a_functions_name(constraints: Constraints, tokenizer: Tokenizer) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ('a"b', "c\\d", "{}", "x.y-z")]
    for dialect, head in (("qwen3_coder", "<tool_call>\n<function={}>\n</function>\n</tool_call>"), ("hermes", "")):
        grammar = ToolGrammars(dialect, tokenizer.split, tokenizer.added).forced(tools, several=False)
        for tool in tools:
            name = tool["function"]["name"]  # type: ignore[index]
            said = json.dumps({"name": name, "arguments": {}})
            text = head.replace("{}", name) if head else f"<tool_call>\n{said}\n</tool_call>"
            constraint = constraints.make(grammar, param="x", thinking_open=False)
            assert constraint is not None
            for token in tokenizer.encode(text, allow_special=True):
                assert constraint.mask()[token], (text, token)  # type: ignore[index]
                constraint.advance(token)
            assert [made for made, _ in parse(text, tools, dialect=dialect).calls] == [name]


def test_shared_definitions_are_written_only_where_they_are_used(forced: Any) -> None:
    definitions = {f"d{n}": {**NODE, "description": "x" * 100} for n in range(300)}
    properties = {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(100)}
    assert forced({"properties": properties, "$defs": definitions}).passes(tagged(p7='{"row": 3}'))


def test_a_thousand_parameters(forced: Any) -> None:
    calls = forced({"properties": {f"p{n}": {"type": "string" if n % 2 else "integer"} for n in range(1000)}})
    assert calls.passes(tagged(p0="3", p999="x"))
    with pytest.raises(RequestError, match="at most 1000") as caught:
        forced({"properties": {f"p{n}": {} for n in range(1001)}}).passes("")
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "large",
    [
        {"type": "object", "properties": {f"p{n}": {"type": "array", "items": NODE} for n in range(1000)}},
        {"anyOf": [{"type": "string", "description": str(n)} for n in range(20000)]},
        {"type": "string", "enum": list(range(20000))},
        {"enum": [f"value {n}" for n in range(20000)]},
    ],
    ids=["object", "union", "impossible", "texts"],
)
@pytest.mark.parametrize("count", [100, 1000])
def test_a_large_definition_of_many_parameters_is_refused_in_time(forced: Any, large: Any, count: int) -> None:
    properties = {f"p{n}": {"$ref": "#/$defs/large" + "/" * n} for n in range(count)}
    start = time.thread_time()
    with suppress(RequestError):
        forced({"properties": properties, "$defs": {"large": large}}).passes("")
    assert time.thread_time() - start < 3
