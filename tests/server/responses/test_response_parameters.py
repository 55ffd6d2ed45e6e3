"""The table of fields holds every field that the official SDK can send, and says the truth about it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from bare_llm import bare_llm
from tables import check_classes
from watched import Watched

from edgellm.errors import RequestError
from edgellm.server.openapi import openapi_document
from edgellm.server.responses import read as module
from edgellm.server.responses.parameters import ITEM_IGNORED, RESPONSE, TOOL_REFUSED
from edgellm.server.responses.shelf import Shelf
from edgellm.server.responses.store import Store
from edgellm.server.settings import ServerSettings

params = pytest.importorskip("openai.types.responses.response_create_params", reason="the openai package is missing")
SETTINGS = ServerSettings(model="m")
VALUES: dict[str, Any] = {  # one that is accepted, for every honoured field
    "model": "m",
    "input": "hi",
    "instructions": "x",
    "store": False,
    "stream": True,
    "max_output_tokens": 5,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "none", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "truncation": "disabled",
    "temperature": 0.5,
    "prediction": {"type": "content", "content": "hi"},
    "cache_salt": "s",
}


@pytest.fixture(scope="module")
def read(tokenizer: Any) -> Any:
    store = Store(None, max_bytes=1000)
    llm = bare_llm(*tokenizer, context=2048)
    yield lambda body: partial(module.read_response, shelf=Shelf(store))(body, llm, SETTINGS)
    store.close()


def test_every_field_of_the_sdk_is_in_exactly_one_class() -> None:
    kinds = (params.ResponseCreateParamsNonStreaming, params.ResponseCreateParamsStreaming)
    names = set().union(*(kind.__required_keys__ | kind.__optional_keys__ for kind in kinds))
    assert "previous_response_id" in names
    check_classes(RESPONSE, names)


def test_every_tool_of_the_sdk_has_an_answer() -> None:
    from typing import get_args, get_type_hints

    from openai.types.responses.tool_param import ToolParam

    kinds = set()
    for member in get_args(ToolParam):
        kinds |= set(get_args(get_args(get_type_hints(member, include_extras=True)["type"])[0])) or set()
    known = {"function", "custom", "namespace", *TOOL_REFUSED}
    assert {kind for kind in kinds if isinstance(kind, str)} - known == set()


def test_honoured_fields_are_read(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = Watched({name: VALUES.get(name) for name in RESPONSE.honoured})
    monkeypatch.setattr(module, "parse_object", lambda *_, **__: body)
    read(b"")
    assert set(RESPONSE.honoured) - body.seen == set()
    repeated = {"prompt_cache_key", "safety_identifier", "user"}
    assert body.seen <= {*RESPONSE.honoured, *RESPONSE.refused, *repeated}


@pytest.mark.parametrize("value", [{}, {"a": 1}, [0], "x", 1, True])
def test_refused_fields_are_named_with_their_reason(read: Any, value: Any) -> None:
    for name, reason in RESPONSE.refused.items():
        with pytest.raises(RequestError) as caught:
            read(json.dumps({"input": "hi", name: value}).encode())
        assert (caught.value.param, caught.value.code) == (name, "unsupported_value")
        assert str(caught.value) == f"{name}: {reason}"
        for absent in (None, False, 0, "", []):
            read(json.dumps({"input": "hi", name: absent}).encode())


@pytest.mark.parametrize("value", [None, True, 5, "x", [1], {"a": {}}])
def test_ignored_fields_have_no_effect(read: Any, value: Any) -> None:
    def requests(**more: Any) -> Any:
        job = read(json.dumps({"input": "hi", "seed": 1, **more}).encode())
        return [(request.prompt, request.sampling, request.cache, request.deadline_s) for request in job.requests]

    expected = requests()
    for name in RESPONSE.ignored:
        assert requests(**{name: value}) == expected


def test_every_field_is_described(tokenizer: Any) -> None:
    document = openapi_document(SETTINGS, tokenizer[0].vocab_size)
    properties = document["components"]["schemas"]["ResponseRequest"]["properties"]
    assert properties.keys() == RESPONSE.honoured.keys() | RESPONSE.refused.keys() | RESPONSE.ignored.keys()
    assert {field for field in RESPONSE.honoured if properties[field].keys() == {"description"}} == set()


def test_ignored_items_are_items_of_the_sdk() -> None:
    from openai.types.responses import response_input_item_param as items

    text = json.dumps([str(member.__annotations__.get("type")) for member in items.ResponseInputItemParam.__args__])
    assert {kind for kind in ITEM_IGNORED if f"'{kind}'" not in text} == set()
