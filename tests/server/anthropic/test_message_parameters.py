"""The tables of Messages hold every field that the official SDK can send, and say the truth about it."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest
from bare_llm import bare_llm
from tables import check_classes

from edgellm.errors import RequestError
from edgellm.server.anthropic.messages import count_tokens, read_messages
from edgellm.server.anthropic.parameters import MESSAGES, TOOL
from edgellm.server.anthropic.schemas import anthropic_schemas
from edgellm.server.parameters import Parameters
from edgellm.server.settings import ServerSettings

types = pytest.importorskip("anthropic.types", reason="the anthropic package is not installed")

SETTINGS = ServerSettings(model="m")
HI = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def sdk_fields(*kinds: Any) -> set[str]:
    return set().union(*(kind.__required_keys__ | kind.__optional_keys__ for kind in kinds))


def message_fields() -> set[str]:
    from anthropic.types.beta import message_count_tokens_params, message_create_params

    plain, beta, count = types.message_create_params, message_create_params, message_count_tokens_params
    return sdk_fields(
        plain.MessageCreateParamsNonStreaming,
        plain.MessageCreateParamsStreaming,
        beta.MessageCreateParamsNonStreaming,
        beta.MessageCreateParamsStreaming,
        count.MessageCountTokensParams,
    )


def tool_fields() -> set[str]:
    return sdk_fields(types.ToolParam)


@pytest.mark.parametrize(("table", "names"), [(MESSAGES, message_fields), (TOOL, tool_fields)])
def test_every_field_of_the_sdk_is_in_exactly_one_class(table: Parameters, names: Any) -> None:
    check_classes(table, names())


@pytest.fixture(scope="module")
def llm(tokenizer: Any) -> Any:
    return bare_llm(*tokenizer, context=2048)


def test_refused_fields_are_refused_by_both_routes(llm: Any) -> None:
    for name in MESSAGES.refused:
        for read in (read_messages, count_tokens):
            with pytest.raises(RequestError) as caught:
                read(json.dumps({**HI, name: {"x": 1}}).encode(), llm, SETTINGS)
            assert caught.value.param == name
            for nothing in (None, [], False):
                read(json.dumps({**HI, name: nothing}).encode(), llm, SETTINGS)


def test_ignored_and_unknown_fields_change_nothing(llm: Any) -> None:
    plain = read_messages(json.dumps(HI).encode(), llm, SETTINGS).requests[0].prompt
    for name in (*MESSAGES.ignored, "unheard_of"):
        for value in ("x", 5, {"x": [1]}, [1], None):
            job = read_messages(json.dumps({**HI, name: value}).encode(), llm, SETTINGS)
            assert job.requests[0].prompt == plain


def test_every_field_is_described() -> None:
    schemas = anthropic_schemas(SETTINGS)
    for name, table in (("MessagesRequest", MESSAGES), ("CountTokensRequest", MESSAGES), ("AnthropicTool", TOOL)):
        properties = schemas[name]["properties"]
        assert properties.keys() == table.honoured.keys() | table.refused.keys() | table.ignored.keys()
        assert all(properties[field].keys() != {"description"} for field in table.honoured)


def test_every_tool_of_anthropics_own_is_left_out(llm: Any) -> None:
    own = [kind for kind in get_args(types.ToolUnionParam) if kind.__name__ != "ToolParam"]
    assert own, "the SDK's types have moved"
    plain = read_messages(json.dumps(HI).encode(), llm, SETTINGS).requests[0].prompt
    for name in (name for kind in own for name in get_args(get_type_hints(kind)["type"])):
        body = {**HI, "tools": [{"type": name, "name": "x"}]}
        assert read_messages(json.dumps(body).encode(), llm, SETTINGS).requests[0].prompt == plain
