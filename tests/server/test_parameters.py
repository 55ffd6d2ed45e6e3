"""The tables of parameters hold every field that the official SDK can send, and say the truth about it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from bare_llm import bare_llm
from tables import check_classes
from watched import Watched

from edgellm.errors import RequestError
from edgellm.server import chat, completions
from edgellm.server.parameters import CHAT, COMPLETION, MESSAGE, STREAM_OPTIONS, Parameters
from edgellm.server.settings import ServerSettings

openai_chat = pytest.importorskip("openai.types.chat", reason="the openai package is not installed")
SETTINGS = ServerSettings(model="m")
TOOL = {"type": "function", "function": {"name": "ls"}}
VALUES: dict[str, Any] = {  # one that is accepted, for every honoured field
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "seed": 1,
    "n": 2,
    "best_of": 2,
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "min_tokens": 1,
    "stop": ["x"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "prediction": {"type": "content", "content": "hi"},
    "cache_salt": "s",
    "nvext": {"agent_hints": {"priority": 1}},
    "kv_retention": {"decode_retention_priority": 5},
    "skip_special_tokens": True,
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "top_logprobs": 1,
    "reasoning_effort": "none",
    "enable_thinking": True,
    "chat_template_kwargs": {"preserve_thinking": True},
    "add_generation_prompt": True,
    "continue_final_message": False,
    "echo": False,
    "max_thinking_tokens": 5,
    **dict.fromkeys(("thinking_token_budget", "thinking_budget")),
    # One form at a time: the others are read all the same.
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")),
    **dict.fromkeys(("json_schema", "regex", "ebnf", "grammar")),
}


def sdk_fields(*kinds: Any) -> set[str]:
    return set().union(*(kind.__required_keys__ | kind.__optional_keys__ for kind in kinds))


def chat_fields() -> set[str]:
    params = openai_chat.completion_create_params
    return sdk_fields(params.CompletionCreateParamsNonStreaming, params.CompletionCreateParamsStreaming)


def completion_fields() -> set[str]:
    from openai.types import completion_create_params as params

    return sdk_fields(params.CompletionCreateParamsNonStreaming, params.CompletionCreateParamsStreaming)


def message_fields() -> set[str]:
    """Of the roles that are taken; the retired function role is refused as a role."""
    roles = ("System", "Developer", "User", "Assistant", "Tool")
    return sdk_fields(*(getattr(openai_chat, f"ChatCompletion{role}MessageParam") for role in roles))


def stream_fields() -> set[str]:
    return sdk_fields(openai_chat.ChatCompletionStreamOptionsParam)


@pytest.mark.parametrize(
    ("table", "names"),
    [(CHAT, chat_fields), (COMPLETION, completion_fields), (MESSAGE, message_fields), (STREAM_OPTIONS, stream_fields)],
)
def test_every_field_of_the_sdk_is_in_exactly_one_class(table: Parameters, names: Any) -> None:
    check_classes(table, names())


@pytest.fixture(scope="module")
def llm(tokenizer: Any) -> Any:
    return bare_llm(*tokenizer, context=2048)


@pytest.fixture(params=["chat", "completions"])
def surface(request: pytest.FixtureRequest) -> Any:
    if request.param == "chat":
        return SimpleNamespace(module=chat, read=chat.read_chat, table=CHAT, least={"messages": VALUES["messages"]})
    read = completions.read_completion
    return SimpleNamespace(module=completions, read=read, table=COMPLETION, least={"prompt": "hi"})


def test_honoured_fields_are_read(llm: Any, surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    special = {"logprobs": True} if surface.table is CHAT else {"logprobs": 1}
    body = Watched({name: {**VALUES, **special}[name] for name in surface.table.honoured})
    monkeypatch.setattr(surface.module, "parse_object", lambda *_, **__: body)
    surface.read(b"", llm, SETTINGS)
    assert set(surface.table.honoured) - body.seen == set()
    assert body.seen <= {*surface.table.honoured, *surface.table.refused}


@pytest.mark.parametrize("value", [{}, {"a": 1}, [0], "x", 1, True])
def test_refused_fields_are_named_with_their_reason(llm: Any, surface: Any, value: Any) -> None:
    for name, reason in surface.table.refused.items():
        with pytest.raises(RequestError) as caught:
            surface.read(json.dumps({**surface.least, name: value}).encode(), llm, SETTINGS)
        assert (caught.value.param, caught.value.code) == (name, "unsupported_value")
        assert str(caught.value) == f"{name}: {reason}"
        for absent in (None, False, 0, "", []):
            surface.read(json.dumps({**surface.least, name: absent}).encode(), llm, SETTINGS)


@pytest.mark.parametrize("value", [None, True, 5, "x", [1], {"a": {}}])
def test_ignored_fields_have_no_effect(llm: Any, surface: Any, value: Any) -> None:
    def read(**more: Any) -> Any:
        job = surface.read(json.dumps({**surface.least, "seed": 1, **more}).encode(), llm, SETTINGS)
        return [(request.prompt, request.sampling, request.cache, request.deadline_s) for request in job.requests]

    expected = read()
    for name in surface.table.ignored:
        assert read(**{name: value}) == expected


def test_a_prediction_is_its_text(llm: Any, surface: Any) -> None:
    def read(prediction: Any) -> list[Any]:
        job = surface.read(json.dumps({**surface.least, "n": 2, "prediction": prediction}).encode(), llm, SETTINGS)
        return [request.prediction for request in job.requests]

    assert read(None) == read({"type": "content", "content": ""}) == [None, None]
    for content in ("def f():\n", [{"type": "text", "text": "def f():\n"}]):
        first, second = read({"type": "content", "content": content})
        assert first is second
        assert llm.tokenizer.decode(first.tokens) == "def f():\n"
    longest = read({"type": "content", "content": "x y " * 5000})[0]
    assert len(longest.tokens) == llm.info.max_tokens
