"""Input items become the messages that a chat client would send."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.errors import RequestError
from edgellm.server.fields import Fields
from edgellm.server.responses.items import read_items, to_messages
from edgellm.server.responses.parameters import ITEM_IGNORED

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
STORED = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "kept"}]}


def read(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    find = {"msg_1": STORED}.get
    found = read_items(Fields({"input": list(items)}), find, limit=100)
    return to_messages(((item, f"input[{n}]") for n, item in enumerate(found)), instructions=instructions)


def call(name: str = "ls", arguments: str = '{"a": 1}', call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, "id": call_id}


def words(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thoughts(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def test_a_text() -> None:
    items = read_items(Fields({"input": "hi"}), {}.get, limit=1)
    assert [item["type"] for item in items] == ["message"]
    assert items[0]["id"].startswith("msg_")
    assert to_messages([(items[0], "input")]) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([USER], [{"role": "user", "content": "hi"}]),
        ([{"type": "message", **USER}], [{"role": "user", "content": "hi"}]),
        ([{"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]}],
         [{"role": "developer", "content": "ab"}]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
         [{"role": "assistant", "content": "no"}]),
        ([CALL, RESULT],
         [{"role": "assistant", "content": "", "tool_calls": [call()]},
          {"role": "tool", "content": "a.txt", "tool_call_id": "c1"}]),
        ([{**RESULT, "output": [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]}],
         [{"role": "tool", "content": "ab", "tool_call_id": "c1"}]),
        ([{**RESULT, "output": [{"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "."}]}],
         [{"role": "tool", "content": "[input_image left out: the model reads text].", "tool_call_id": "c1"}]),
        ([thoughts("t"), words("w"), CALL, {**CALL, "call_id": "c2"}, RESULT],
         [{"role": "assistant", "content": "w", "reasoning_content": "t", "tool_calls": [call(), call(call_id="c2")]},
          {"role": "tool", "content": "a.txt", "tool_call_id": "c1"}]),
        ([thoughts("t"), CALL, thoughts("u"), {**CALL, "call_id": "c2"}],
         [{"role": "assistant", "content": "", "reasoning_content": "t\nu",
           "tool_calls": [call(), call(call_id="c2")]}]),
        ([words("a"), words("b")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
        ([words("a"), CALL, words("b")], [{"role": "assistant", "content": "a\nb", "tool_calls": [call()]}]),
        ([words("a"), CALL, words("\nb")], [{"role": "assistant", "content": "a\nb", "tool_calls": [call()]}]),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, words("w")],
         [{"role": "assistant", "content": "w", "reasoning_content": "s"}]),
        ([thoughts("t", summary=[{"type": "summary_text", "text": "s"}]), words("w")],
         [{"role": "assistant", "content": "w", "reasoning_content": "t"}]),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, words("w")],
         [{"role": "assistant", "content": "w"}]),
        ([{"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}, USER],
         [{"role": "user", "content": "hi"}]),
        ([{"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": '*** "é"\n'},
          {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}],
         [{"role": "assistant", "content": "",
           "tool_calls": [call("apply_patch", '{"input": "*** \\"é\\"\\n"}')]},
          {"role": "tool", "content": "ok", "tool_call_id": "c1"}]),
        ([{**CALL, "namespace": "web"}], [{"role": "assistant", "content": "", "tool_calls": [call("web__ls")]}]),
        ([{**CALL, "namespace": "mcp__x__"}],
         [{"role": "assistant", "content": "", "tool_calls": [call("mcp__x__ls")]}]),
        ([{"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
          {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}],
         [{"role": "assistant", "content": "", "tool_calls": [call("local_shell", '{"command": ["ls"]}')]},
          {"role": "tool", "content": "a.txt"}]),
        ([{"type": "compaction", "encrypted_content": "x"}, USER], [{"role": "user", "content": "hi"}]),
        ([{"type": "item_reference", "id": "msg_1"}], [{"role": "assistant", "content": "kept"}]),
        ([{"id": "msg_1"}], [{"role": "assistant", "content": "kept"}]),
        ([*({"type": kind, "id": "x"} for kind in sorted(ITEM_IGNORED)), USER], [{"role": "user", "content": "hi"}]),
    ],
)  # fmt: skip
def test_items(items: list[Any], messages: list[Any]) -> None:
    assert read(*items) == messages


def test_instructions_come_first() -> None:
    assert read({"role": "developer", "content": "b"}, USER, instructions="a") == [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        USER,
    ]


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([1], "input[0]", "invalid_type"),
        ([{}], "input[0].type", "invalid_value"),
        ([{"type": "no_such_item"}], "input[0].type", "unsupported_value"),
        ([{"type": "computer_call_output"}], "input[0].type", "unsupported_value"),
        ([USER, {"role": "tool", "content": "x"}], "input[1].role", "invalid_value"),
        ([{"role": "user"}], "input[0].content", "invalid_value"),
        ([{"role": "user", "content": 5}], "input[0].content", "invalid_type"),
        ([{"role": "user", "content": [5]}], "input[0].content[0]", "invalid_type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text", "invalid_value"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].type", "unsupported_value"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].type", "unsupported_value"),
        ([{**RESULT, "output": [{"text": "x"}]}], "input[0].output[0].type", "unsupported_value"),
        ([{**CALL, "name": ""}], "input[0].name", "invalid_value"),
        ([{**CALL, "arguments": {}}], "input[0].arguments", "invalid_type"),
        ([{"type": "item_reference", "id": "gone"}], "input[0].id", "invalid_value"),
        ([{"type": "reasoning", "content": "x"}], "input[0].content", "invalid_type"),
        ([], "input", "invalid_value"),
        ([USER] * 101, "input", "invalid_value"),
    ],
)  # fmt: skip
def test_errors_name_the_field(items: list[Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(*items)
    assert (caught.value.param, caught.value.code) == (param, code)
