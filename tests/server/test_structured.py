"""What a request may ask of the form of its answer, and how a wrong wish is refused."""

from __future__ import annotations

from typing import Any

import pytest
from constrained import passes

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import RequestError
from edgellm.runtime.constraints import Constraints
from edgellm.server.fields import Fields
from edgellm.server.structured import Form, read_form, read_grammar
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("ls", "now")
]
CALL = "<tool_call>\n<function={}>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_checkpoint("tiny", tmp_path_factory.mktemp("structured") / "tiny"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> ToolGrammars:
    return ToolGrammars("qwen3_coder", tokenizer.split, tokenizer.added)


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids)


def fits(form: Form, constraints: Constraints, tokenizer: Tokenizer, text: str) -> bool:
    constraint = constraints.make(form.grammar, param=form.param, thinking_open=False)
    return passes(constraint, tokenizer, text)


TWO_CALLS = f"{CALL.format('ls')}\n{CALL.format('now')}"


@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"a": [1]}'], ["[1]", "Hello"]),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            ['{"n": 3}'],
            ["{}"],
        ),
        ({"guided_json": SCHEMA}, ['{"n": 3}'], ["{}"]),
        ({"guided_json": '{"type": "integer"}'}, ["3"], ["{}"]),
        ({"structured_outputs": {"json": SCHEMA}}, ['{"n": 3}'], ["{}"]),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["3"]),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"], ["maybe"]),
        ({"guided_choice": ["yes"]}, ["yes"], ["no"]),
        ({"guided_regex": "[0-9]+"}, ["42"], ["x"]),
        ({"regex": "[0-9]+"}, ["42"], ["x"]),
        ({"guided_grammar": 'start: "a"+'}, ["aaa"], ["b"]),
        ({"grammar": 'root ::= "a"+'}, ["aaa"], ["b"]),
        ({"tools": TOOLS, "tool_choice": "required"}, [CALL.format("ls"), TWO_CALLS], ["Hello", ""]),
        (
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
            [CALL.format("now")],
            [TWO_CALLS],
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
            [CALL.format("now")],
            [CALL.format("ls"), "Hello"],
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "ls"}}]},
                },
            },
            [CALL.format("ls")],
            [CALL.format("now"), "Hello"],
        ),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            ['{"a": 1}', CALL.format("ls"), TWO_CALLS],
            ["Hello", CALL.format("rm")],
        ),
    ],
)
def test_forms(
    grammars: ToolGrammars,
    constraints: Constraints,
    tokenizer: Tokenizer,
    body: dict[str, Any],
    good: list[str],
    bad: list[str],
) -> None:
    form = read_form(Fields(body), body.get("tools", []), grammars)
    for text in good:
        assert fits(form, constraints, tokenizer, text), text
    for text in bad:
        assert not fits(form, constraints, tokenizer, text), text


def test_free_answers_have_no_grammar(grammars: ToolGrammars) -> None:
    for body in ({}, {"response_format": {"type": "text"}}, {"response_format": None}, {"tool_choice": "auto"}):
        assert read_form(Fields(body), TOOLS, grammars) == Form(TOOLS, None, "tools")
    assert read_form(Fields({"tool_choice": "none"}), TOOLS, grammars).tools == []
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "ls"}]},
    }
    assert read_form(Fields({"tool_choice": allowed}), TOOLS, grammars).tools == TOOLS[:1]


def test_one_strict_tool_holds_all_calls_to_their_schemas(
    grammars: ToolGrammars, constraints: Constraints, tokenizer: Tokenizer
) -> None:
    strict = [TOOLS[0], {"type": "function", "function": {**TOOLS[1]["function"], "strict": True}}]
    form = read_form(Fields({}), strict, grammars)
    for text, good in (("Hello.", True), (CALL.format("ls"), True), (CALL.format("rm"), False)):
        assert fits(form, constraints, tokenizer, text) is good


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 5000}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 3]}, "guided_choice[1]"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 3}, "guided_regex"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"tool_choice": "must"}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice.function.name"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tool_choice": {"type": "allowed_tools", "tools": ["ls"], "mode": "auto"}}, "tool_choice.tools[0]"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [], "mode": "required"}}, "tool_choice.tools"),
        ({"tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_wrong_wishes_name_the_field(grammars: ToolGrammars, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_form(Fields(body), TOOLS, grammars)
    assert caught.value.param == param


def test_required_needs_tools(grammars: ToolGrammars) -> None:
    with pytest.raises(RequestError, match="there are no tools"):
        read_form(Fields({"tool_choice": "required"}), [], grammars)


def test_text_completions_take_all_but_the_chat_fields() -> None:
    grammar, param = read_grammar(Fields({"guided_regex": "a+"}), with_response_format=False)
    assert grammar is not None
    assert param == "guided_regex"
    assert read_grammar(Fields({}), with_response_format=False) == (None, "")
