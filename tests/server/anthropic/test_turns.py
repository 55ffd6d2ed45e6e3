"""Messages of Anthropic become chat messages that say the same; what cannot be said is refused by its path."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.errors import RequestError
from edgellm.server.anthropic.turns import read_system, read_turns
from edgellm.server.fields import Fields

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def thought(words: str, signature: Any = "sig") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


def result(content: Any = "a.txt", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return read_turns(Fields({"messages": list(messages)}), limit=100)


def user(*content: Any) -> list[dict[str, Any]]:
    return turns({"role": "user", "content": list(content)})


def assistant(*content: Any) -> dict[str, Any]:
    (turn,) = turns({"role": "assistant", "content": list(content)})
    return turn


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "toolu_1", "content": content}


def test_texts_of_a_user_are_lines_and_those_of_the_assistant_one_text() -> None:
    assert turns({"role": "user", "content": "hi"}) == [{"role": "user", "content": "hi"}]
    assert user(text("a"), text("b")) == [{"role": "user", "content": "a\nb"}]
    assert user() == [{"role": "user", "content": ""}]
    assert assistant(text("a"), text("b")) == {"role": "assistant", "content": "ab"}
    assert turns({"role": "assistant", "content": "a"}) == [{"role": "assistant", "content": "a"}]


def test_an_assistants_blocks_keep_their_order_by_kind() -> None:
    other = {**USE, "id": "toolu_2", "input": {}}
    made = assistant(thought("r0"), text("t0"), USE, thought("\nr1", None), text("t1"), other, thought(""))
    assert made == {
        "role": "assistant",
        "content": "t0t1",
        "reasoning_content": "r0\nr1",
        "tool_calls": [CALL, {"id": "toolu_2", "type": "function", "function": {"name": "bash", "arguments": {}}}],
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("redacted_thinking", "server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result", "tool_search_tool_result"),
        *("mcp_tool_use", "mcp_tool_result", "fallback"),
    ],
)
def test_what_other_servers_left_in_an_answer_is_dropped(kind: str) -> None:
    assert assistant({"type": kind, "data": "x"}, text("a")) == {"role": "assistant", "content": "a"}


def test_results_come_before_the_text_in_their_order() -> None:
    made = user(text("and?"), result("1"), text("go on"), result("2"))
    assert made == [tool("1"), tool("2"), {"role": "user", "content": "and?\ngo on"}]
    assert user(result("1"), text("")) == [tool("1")]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (result("boom", is_error=True), "Error: boom"),
        (result([text("10"), text("525")]), "10\n525"),
        (result([text("boom"), IMAGE], is_error=True), "Error: boom\n[image left out: the model reads text]"),
        (result([{"type": "tool_reference", "tool_name": "x"}]), "[tool_reference left out: the model reads text]"),
        (result(""), ""),
        (result(None), ""),
        (result([]), ""),
        (result("", is_error=True), "Error: "),
        (result("fine", is_error=False), "fine"),
    ],
)
def test_what_the_model_reads_of_a_result(block: dict[str, Any], said: str) -> None:
    assert user(block) == [tool(said)]
    del block["tool_use_id"]
    assert user(block) == [{"role": "tool", "content": said}]


def test_a_result_without_content_is_empty() -> None:
    block = result()
    del block["content"]
    assert user(block) == [tool("")]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_stay_where_they_are(role: str) -> None:
    made = turns({"role": "user", "content": "hi"}, {"role": role, "content": [text("Be"), text("brief.")]})
    assert made == [{"role": "user", "content": "hi"}, {"role": role, "content": "Be\nbrief."}]


def test_the_system_prompt() -> None:
    marked = [text("a", cache_control={"type": "ephemeral"}), text("b")]
    assert read_system(Fields({"system": marked})) == [{"role": "system", "content": "a\nb"}]
    assert read_system(Fields({"system": "a\nb"})) == [{"role": "system", "content": "a\nb"}]
    for empty in ("", [], None):
        assert read_system(Fields({"system": empty})) == []


BAD: list[tuple[Any, str]] = [
    (None, "messages"),
    ([], "messages"),
    ([{"role": "user", "content": "x"}] * 101, "messages"),
    ("hi", "messages"),
    (["hi"], "messages[0]"),
    ([{"role": "tool", "content": "hi"}], "messages[0].role"),
    ([{"content": "hi"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [text("a"), IMAGE]}], "messages[0].content[1]"),
    ([{"role": "user", "content": [{"type": "document"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "search_result"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [USE]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [result(5)]}], "messages[0].content[0].content"),
    ([{"role": "user", "content": [result(is_error="yes")]}], "messages[0].content[0].is_error"),
    ([{"role": "user", "content": [result(tool_use_id=5)]}], "messages[0].content[0].tool_use_id"),
    ([{"role": "assistant", "content": [IMAGE]}], "messages[0].content[0]"),
    ([{"role": "assistant", "content": [{"type": "compaction"}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "content": [{**USE, "name": ""}]}], "messages[0].content[0].name"),
    ([{"role": "assistant", "content": [{**USE, "input": "x"}]}], "messages[0].content[0].input"),
    ([{"role": "assistant", "content": [thought("a", 5)]}], "messages[0].content[0].signature"),
    ([{"role": "system", "content": [IMAGE]}], "messages[0].content[0]"),
]


@pytest.mark.parametrize(("messages", "param"), BAD)
def test_what_cannot_be_said_is_refused_by_its_path(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_turns(Fields({"messages": messages}), limit=100)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)
    with pytest.raises(RequestError, match=r"system\[0\]"):
        read_system(Fields({"system": [IMAGE]}))
