"""Tools of the Responses API: functions, custom tools with grammars, namespaces; which to call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bare_llm import bare_llm
from constrained import passes
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import call, tool
from response_events import assembled, response_events

from edgellm.errors import RequestError
from edgellm.server.fields import Fields
from edgellm.server.responses.items import to_messages
from edgellm.server.responses.parameters import TOOL_REFUSED
from edgellm.server.responses.tools import Toolbox, read_tools
from edgellm.text.grammars import lark_grammar
from edgellm.text.tool_grammars import ToolGrammars

PATCHES = r"""start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

hunk: add | delete | update
add: "*** Add File: " name LF added+
delete: "*** Delete File: " name LF
update: "*** Update File: " name LF change+
name: /(.+)/
added: "+" /(.*)/ LF
change: ("@@" | "@@ " /(.+)/ | ("+" | "-" | " ") /(.*)/) LF

%import common.LF
"""
PATCH = '*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1 < 2\n+x = "</a> é😀"\n \n*** End Patch'
LARK = {"type": "grammar", "syntax": "lark", "definition": PATCHES}
APPLY = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": LARK}
LS = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture(scope="module")
def llm(tokenizer: Any) -> Any:
    return bare_llm(*tokenizer, context=2048)


def read(llm: Any, *tools: Any) -> Toolbox:
    return read_tools(Fields({"tools": list(tools)}), llm, limit=10)


def output_of(running: Any, **body: Any) -> list[Any]:
    """Of both ways, which agree."""
    whole = running.post("/v1/responses", input="hi", **body).raise_for_status().json()
    streamed = assembled(response_events(running.post("/v1/responses", input="hi", **body, stream=True)))

    def plain(items: list[Any]) -> list[Any]:
        return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]

    assert plain(whole["output"]) == plain(streamed["output"])
    found: list[Any] = whole["output"]
    return found


def test_a_function_is_the_chat_function(llm: Any) -> None:
    given = {**LS, "description": "Lists.", "strict": False}
    (made,) = read(llm, given).chat
    assert list(made["function"].items()) == [
        ("name", "ls"),
        ("description", "Lists."),
        ("parameters", LS["parameters"]),
    ]
    assert read(llm, given).declared == [given]


@pytest.mark.parametrize(
    ("parameters", "strict"),
    [
        (LS["parameters"], True),
        (None, True),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}, False),
        ({"type": "object", "patternProperties": {"x": {}}}, False),
    ],
)
def test_a_function_is_strict_where_it_can_be(llm: Any, parameters: Any, strict: bool) -> None:
    box = read(llm, {"type": "function", "name": "f", "parameters": parameters})
    assert box.declared[0]["strict"] is strict
    assert box.chat[0]["function"].get("strict", False) is strict


def test_a_custom_tool_is_a_function_with_one_text(llm: Any) -> None:
    (made,) = read(llm, APPLY).chat
    assert made["function"]["name"] == "apply_patch"
    assert (
        made["function"]["description"] == f"Edits files.\n\nThe parameter input follows this Lark grammar:\n{PATCHES}"
    )
    assert made["function"]["parameters"]["required"] == ["input"]
    (free,) = read(llm, {"type": "custom", "name": "note", "format": {"type": "text"}}).chat
    assert "description" not in free["function"]
    assert "strict" not in free["function"]


def test_namespaces_are_flattened(llm: Any) -> None:
    web = {"type": "namespace", "name": "web", "description": "The web.", "tools": [LS, APPLY]}
    box = read(llm, LS, web, {"type": "namespace", "name": "mcp__x__", "tools": [LS]})
    assert list(box.tools) == ["ls", "web__ls", "web__apply_patch", "mcp__x__ls"]
    assert box.tools["web__ls"].chat["function"]["description"] == "The web."
    assert "The web." not in box.tools["web__apply_patch"].chat["function"]["description"]
    assert box.declared[1] == web


@pytest.mark.parametrize("kind", sorted(TOOL_REFUSED))
def test_tools_of_a_server_are_refused_by_name(running: Any, kind: str) -> None:
    answer = running.post("/v1/responses", input="hi", tools=[{**LS, "strict": False}, {"type": kind}])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].type"
    assert f"'{kind}': {TOOL_REFUSED[kind]}" in error["message"]
    if kind.startswith("web_search"):
        assert 'web_search="disabled"' in error["message"]


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        (5, "tools[0]"),
        ({"name": "x"}, "tools[0].type"),
        ({"type": "teleport", "name": "x"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "name": "a b"}, "tools[0].name"),
        ({"type": "function", "name": "x", "parameters": []}, "tools[0].parameters"),
        ({"type": "function", "name": "x", "strict": "yes"}, "tools[0].strict"),
        ({"type": "custom", "name": "x", "format": {"type": "json"}}, "tools[0].format.type"),
        ({"type": "custom", "name": "x", "format": {"type": "grammar"}}, "tools[0].format.definition"),
        ({"type": "custom", "name": "x", "format": {**LARK, "syntax": "peg"}}, "tools[0].format.syntax"),
        ({"type": "custom", "name": "x", "format": {**LARK, "definition": "start: ("}}, "tools[0].format.definition"),
        (
            {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "regex", "definition": "(a"}},
            "tools[0].format.definition",
        ),
        ({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}, "tools[0].tools[0].type"),
        ({"type": "namespace", "name": "n", "tools": [LS, LS]}, "tools[0]"),
    ],
)
def test_wrong_tools_are_named(llm: Any, entry: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(llm, entry)
    assert caught.value.param == param


def test_a_patch_arrives_byte_for_byte(tree: Any) -> None:
    for patch in (PATCH, f"{PATCH}\n"):
        tree.script.reply = f"I patch.\n{call('apply_patch', input=patch)}"
        message, made = output_of(tree, tools=[APPLY], temperature=0)
        assert message["content"][0]["text"] == "I patch."
        assert made["id"].startswith("ctc_")
        assert made["call_id"].startswith("call_")
        assert (made["type"], made["name"], made["input"]) == ("custom_tool_call", "apply_patch", patch)


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.sampled_from('a \n\t"\\<>/é😀{}'), max_size=30))
def test_any_text_of_a_custom_tool_comes_back_and_is_rendered_as_it_was(llm: Any, text: str) -> None:
    note = {"type": "custom", "name": "note"}
    box = read(llm, note)
    parser = llm.parser(box.chat, thinking_open=False, id_seed="s")
    deltas = parser.feed(call("note", input=text)) + parser.finish(True)
    arguments = json.loads("".join(getattr(delta, "fragment", "") for delta in deltas))
    if "<parameter" in text or "</" in text:
        return  # the form of calls cannot hold every text
    assert arguments == {"input": text}
    made = {"type": "custom_tool_call", "call_id": "c", "name": "note", "input": text}
    messages = to_messages([({"type": "message", "role": "user", "content": "hi"}, "input[0]"), (made, "input[1]")])
    prompt = llm.tokenizer.decode(llm.renderer.render(messages, tools=box.chat).token_ids)
    assert call("note", input=text) in prompt


def test_a_namespaced_call_has_its_namespace(tree: Any) -> None:
    tree.script.reply = call("web__ls", path="x")
    (made,) = output_of(tree, tools=[{"type": "namespace", "name": "web", "tools": [LS]}], temperature=0)
    assert (made["type"], made["name"], made["namespace"]) == ("function_call", "ls", "web")
    assert json.loads(made["arguments"]) == {"path": "x"}


def test_calls_are_held_to_the_grammar_of_their_tool(llm: Any) -> None:
    tokenizer = llm.tokenizer
    box = read(llm, APPLY, LS)
    assert box.texts == {"apply_patch": lark_grammar(PATCHES)}
    grammars = llm.tool_grammars.with_texts(box.texts)

    def allowed(text: str, *, forced: bool) -> bool:
        grammar = grammars.forced(box.chat, several=True) if forced else grammars.free(box.chat)
        return passes(llm.constraints.make(grammar, param="tools", thinking_open=False), tokenizer, text)

    for forced in (False, True):
        assert allowed(call("apply_patch", input=PATCH), forced=forced)
        assert allowed(call("apply_patch", input=PATCH + "\n"), forced=forced)
        assert allowed(call("ls", path="x"), forced=forced)
        assert not allowed(call("apply_patch", input="*** nonsense"), forced=forced)
        assert not allowed(call("apply_patch", input=PATCH + "\n\nmore"), forced=forced)
    assert allowed(f"Well.\n{call('apply_patch', input=PATCH)}", forced=False)


def test_a_regular_expression_ends_where_the_call_ends(llm: Any) -> None:
    grammars = llm.tool_grammars.with_texts({"note": r"(?s:.*)"})
    tools = [tool("note", input="string")]

    def allowed(text: str) -> bool:
        grammar = grammars.forced(tools, several=False)
        return passes(llm.constraints.make(grammar, param="tools", thinking_open=False), llm.tokenizer, text)

    assert allowed(call("note", input="any\ntext < 5"))
    assert not allowed(call("note", input="x\n</parameter>\n</function>\n</tool_call>"))


@pytest.mark.parametrize("dialect", ["hermes", "glm45"])
def test_other_dialects_take_custom_tools(llm: Any, dialect: str) -> None:
    grammars = ToolGrammars(dialect, llm.tokenizer.split, llm.tokenizer.added).with_texts(read(llm, APPLY).texts)
    grammar = grammars.forced(read(llm, APPLY).chat, several=False)
    assert llm.constraints.make(grammar, param="tools", thinking_open=False) is not None


@pytest.mark.parametrize(
    ("choice", "offered", "forced"),
    [
        (None, ["ls", "apply_patch"], False),
        ("auto", ["ls", "apply_patch"], False),
        ("none", [], False),
        ("required", ["ls", "apply_patch"], True),
        ({"type": "function", "name": "ls"}, ["ls", "apply_patch"], True),
        ({"type": "custom", "name": "apply_patch"}, ["ls", "apply_patch"], True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ls"}]}, ["ls"], False),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
            ["apply_patch"],
            True,
        ),
    ],
)
def test_tool_choice(running: Any, choice: Any, offered: list[str], forced: bool) -> None:
    running.script.reply = call("apply_patch", input=PATCH) if "apply_patch" in str(choice) else call("ls", path="x")
    tools = [{**LS, "strict": False}, APPLY]
    body = running.post("/v1/responses", input="hi", tools=tools, tool_choice=choice).raise_for_status().json()
    request = running.script.requests[-1]
    prompt = running.llm.tokenizer.decode(request.prompt)
    for name in ("ls", "apply_patch"):
        assert (f'"name": "{name}"' in prompt) == (name in offered)
    assert body["tool_choice"] == ("auto" if choice is None else choice)
    if forced:
        assert not passes(request.constraint, running.llm.tokenizer, "words")


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("sometimes", "tool_choice"),
        (5, "tool_choice"),
        ({"type": "function", "name": "cd"}, "tool_choice.name"),
        ({"type": "custom", "name": "ls"}, "tool_choice.name"),
        ({"type": "web_search_preview"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "mode": "x", "tools": [{"type": "function", "name": "ls"}]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
    ],
)
def test_wrong_choices_are_named(running: Any, choice: Any, param: str) -> None:
    answer = running.post("/v1/responses", input="hi", tools=[LS], tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
