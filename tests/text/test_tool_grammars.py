"""Forced calls: what the template renders gets through, what would not be a call of the tools does not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from constrained import passes
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import parse

from edgellm.decode.constraint import Constraint
from edgellm.errors import RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars

PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "mode": {"type": "string", "enum": ["read", "write only"]},
        "deep": {"type": "boolean"},
        "where": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "free": {"description": "no type"},
    },
    "required": ["path"],
    "$defs": {"place": {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "edit", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "list_all", "parameters": None}},
]
ARGUMENTS = st.fixed_dictionaries(
    {"path": st.text("ab/<>\n =é", max_size=12)},
    optional={
        "lines": st.integers(-(10**20), 10**20),
        "mode": st.sampled_from(["read", "write only"]),
        "deep": st.booleans(),
        "where": st.fixed_dictionaries({"row": st.integers(0, 99)}),
        "tags": st.lists(st.text('xyz \n"\\', max_size=5), max_size=3),
        "either": st.text("ab", min_size=1, max_size=4) | st.integers(0, 99),
        "free": st.text("abc", min_size=1, max_size=5),
    },
)
CALLS = st.lists(
    st.tuples(st.just("edit"), ARGUMENTS) | st.tuples(st.sampled_from(["now", "list_all"]), st.just({})),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids)


def forced(
    constraints: Constraints,
    tokenizer: Tokenizer,
    *,
    dialect: str = "qwen3_coder",
    several: bool = True,
    tools: Any = TOOLS,
) -> Constraint:
    grammar = ToolGrammars(dialect, tokenizer.split, tokenizer.added).forced(tools, several=several)
    made = constraints.make(grammar, param="tool_choice", thinking_open=False)
    assert made is not None
    return made


def written(renderer: ChatRenderer, tokenizer: Tokenizer, calls: list[tuple[str, Any]]) -> str:
    """The answer as the chat template writes it."""
    said = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    turns: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    answer = {"role": "assistant", "content": "", "tool_calls": said}
    whole = renderer.render([*turns, answer], add_generation_prompt=False, enable_thinking=False)
    asked = renderer.render(turns, enable_thinking=False)
    return tokenizer.decode(whole.token_ids[len(asked.token_ids) :]).split("<|im_end|>")[0]


@settings(max_examples=150, deadline=None)
@given(calls=CALLS)
def test_rendered_calls_get_through_and_are_read_back(
    constraints: Constraints, tokenizer: Tokenizer, renderer: ChatRenderer, calls: list[tuple[str, Any]]
) -> None:
    in_order = [
        (name, {key: given[key] for key in PARAMETERS["properties"] if key in given})  # type: ignore[attr-defined]
        for name, given in calls
    ]
    text = written(renderer, tokenizer, in_order)
    ends_early = any("\n</parameter>\n" in f"{value}\n" for _, given in calls for value in given.values())
    assert ends_early or passes(forced(constraints, tokenizer), tokenizer, text)
    read = parse(text, TOOLS)
    assert [name for name, _ in read.arguments()] == [name for name, _ in in_order]
    for (_, wanted), (_, found) in zip(in_order, read.arguments(), strict=True):
        assert found.keys() == wanted.keys()
        assert ends_early or all(
            wanted.get(key) == found.get(key) for key in ("path", "lines", "mode", "where", "tags")
        )
    if len(calls) > 1 and not ends_early:
        assert not passes(forced(constraints, tokenizer, several=False), tokenizer, text)


CALL = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "",
        CALL.format("rm", ""),
        CALL.format("edit", ""),  # path is required
        CALL.format("edit", "<parameter=lines>\n3\n</parameter>\n<parameter=path>\na\n</parameter>\n"),  # order
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n<parameter=lines>\nmany\n</parameter>\n"),
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n<parameter=mode>\nappend\n</parameter>\n"),
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n<parameter=where>\n{}\n</parameter>\n"),
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n"),
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n<parameter=new>\nb\n</parameter>\n"),
        CALL.format("edit", "<parameter=path>\na\n</parameter>\n").removesuffix("</tool_call>"),
        CALL.format("now", "") + "\nDone.",
    ],
)
def test_what_is_no_call_of_the_tools_is_stopped(constraints: Constraints, tokenizer: Tokenizer, text: str) -> None:
    assert not passes(forced(constraints, tokenizer), tokenizer, text)


EDIT = {"path": 'a "b"', "lines": 3}
JSON_FORMS = {
    "hermes": '<tool_call>\n{"name": "edit", "arguments": %s}\n</tool_call>',
    "nemotron_deci": '<TOOLCALL>[{"name": "edit", "arguments": %s}]</TOOLCALL>',
    "llama3_json": '{"name": "edit", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "edit", "arguments": %s}]',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>edit\n```json\n%s\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize("dialect", JSON_FORMS)
def test_json_dialects(constraints: Constraints, tokenizer: Tokenizer, dialect: str) -> None:
    for arguments, fits in ((EDIT, True), ({"lines": 3}, False), ({**EDIT, "new": 1}, False), ({"path": 3}, False)):
        text = JSON_FORMS[dialect] % json.dumps(arguments)
        assert passes(forced(constraints, tokenizer, dialect=dialect), tokenizer, text) is fits, arguments


def test_glm45(constraints: Constraints, tokenizer: Tokenizer) -> None:
    text = (
        "<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a\nb</arg_value>\n"
        "<arg_key>lines</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"
    )
    assert passes(forced(constraints, tokenizer, dialect="glm45"), tokenizer, text % 3)
    assert not passes(forced(constraints, tokenizer, dialect="glm45"), tokenizer, text % "x")


def test_dialects_that_cannot_be_forced_are_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="pythonic") as caught:
        ToolGrammars("pythonic", tokenizer.split, tokenizer.added).forced(TOOLS, several=True)
    assert caught.value.param == "tool_choice"


def test_a_strict_tool_refuses_keywords_that_cannot_be_kept(constraints: Constraints, tokenizer: Tokenizer) -> None:
    strict = [{"type": "function", "function": {"name": "edit", "parameters": PARAMETERS, "strict": True}}]
    with pytest.raises(RequestError, match="uniqueItems"):
        forced(constraints, tokenizer, tools=strict)


def test_free_text_with_calls_that_fit(constraints: Constraints, tokenizer: Tokenizer) -> None:
    grammar = ToolGrammars("qwen3_coder", tokenizer.split, tokenizer.added).free(TOOLS)
    good = CALL.format("edit", "<parameter=path>\na\n</parameter>\n")
    for text, fits in (
        ("Hello, world.\n", True),
        ("", True),
        (good, True),
        (f"I edit.\n\n{good}\n{good}", True),
        (f"{good}\nDone.", True),
        ("The tag </parameter> is text.", True),
        (CALL.format("edit", ""), False),
        (CALL.format("rm", ""), False),
        (f"First {good}\n" + CALL.format("edit", "<parameter=lines>\nx\n</parameter>\n"), False),
    ):
        constraint = constraints.make(grammar, param="tools", thinking_open=False)
        assert constraint is not None
        assert passes(constraint, tokenizer, text) is fits, text
    assert ToolGrammars("llama3_json", tokenizer.split, tokenizer.added).free(TOOLS) is None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^[A-Z]{3}$"}}}, "the parameter 'a': 'pattern'"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "'format' cannot be enforced"),
        ({"properties": {"a": {"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]}}}, "'minLength'"),
        ({"properties": {"a": {"type": "string", "not": {"const": "x"}}}}, "'not'"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "the reference '#/x', which leads nowhere,"),
        ({"properties": {"a": {"type": "foo"}}}, "the type 'foo'"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"maxLength": 3}}}, "'maxLength'"),
        ({"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}]}, "the parameters: 'anyOf'"),
        ({"if": {}, "then": {}}, "the parameters: 'if'"),
        ({"dependentRequired": {"a": ["b"]}}, "the parameters: 'dependentRequired'"),
    ],
)  # fmt: skip
def test_strict_tools_that_tags_cannot_hold_are_refused(
    tokenizer: Tokenizer, schema: dict[str, Any], named: str
) -> None:
    grammars = ToolGrammars("qwen3_coder", tokenizer.split, tokenizer.added)
    function: dict[str, Any] = {"name": "f", "parameters": {"type": "object", **schema}}
    grammars.forced([{"function": function}], several=True)  # ignored where nobody asked to be strict
    with pytest.raises(RequestError, match=re.escape(named)) as caught:
        grammars.forced([{"function": {**function, "strict": True}}], several=True)
    assert caught.value.param == "tools"


def test_strict_tools_in_the_usual_form_are_taken(tokenizer: Tokenizer) -> None:
    """As the OpenAI SDK writes them: everything required, null for optional, no further properties."""
    properties = {
        "path": {"type": "string", "description": "where", "title": "Path"},
        "mode": {"type": "string", "enum": ["r", "w"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "more": {"type": ["string", "null"], "default": None},
        "kind": {"$ref": "#/$defs/Kind"},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 1}},
    }
    schema = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
        "title": "Args", "$defs": {"Kind": {"enum": ["a", "b"], "title": "Kind", "type": "string"}},
    }  # fmt: skip
    grammars = ToolGrammars("qwen3_coder", tokenizer.split, tokenizer.added)
    assert grammars.forced([{"function": {"name": "f", "strict": True, "parameters": schema}}], several=False)
