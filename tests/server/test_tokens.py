"""Tokenizing, detokenizing and rendering agree with what the generating routes do."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HI = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi é😀 <|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_text_comes_back(running: Any, text: str) -> None:
    answer = running.post("/tokenize", prompt=text).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == running.llm.info.max_tokens
    assert answer["token_strs"] is None
    composed = unicodedata.normalize("NFC", text)  # as the family's tokenizers do first
    assert running.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": composed}


def test_a_prompt_has_the_tokens_of_a_completion(running: Any) -> None:
    text = "a<|im_end|>b"
    answer = running.post("/tokenize", prompt=text, return_token_strs=True, add_special_tokens=True).json()
    running.post("/v1/completions", prompt=text)
    assert tuple(answer["tokens"]) == running.script.requests[0].prompt
    assert "".join(answer["token_strs"]) == text
    assert running.post("/detokenize", tokens=[]).json() == {"prompt": ""}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": [TOOL]},
        {"enable_thinking": True},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"reasoning_effort": "none"},
        {"messages": [*HI, {"role": "assistant", "content": "So"}], "continue_final_message": True},
        {"messages": [*HI, {"role": "assistant", "content": "So"}], "add_generation_prompt": False},
    ],
)
def test_rendering_is_what_the_chat_route_does(running: Any, body: dict[str, Any]) -> None:
    body = {"messages": HI, **body}
    rendered = running.post("/v1/chat/completions/render", stream=True, n=2, **body).json()
    assert running.script.requests == []
    usage = running.post(**body).json()["usage"]
    (request,) = running.script.requests
    assert tuple(rendered["token_ids"]) == request.prompt
    assert tuple(rendered["stable_lengths"]) == request.stable_lengths
    assert rendered["count"] == usage["prompt_tokens"]
    assert rendered["prompt"] == running.llm.tokenizer.decode(request.prompt)
    assert rendered["thinking_open"] == rendered["prompt"].rstrip().endswith("<think>")
    tokens = running.post("/tokenize", **body).json()
    assert tokens["tokens"] == rendered["token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HI, "tools": [5]}, "tools[0]"),
        ("/tokenize", {"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [10**9]}, "tokens[0]"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
        ("/v1/chat/completions/render", {"messages": HI, "temperature": 9}, "temperature"),
    ],
)
def test_errors_name_the_field(running: Any, path: str, body: dict[str, Any], param: str) -> None:
    response = running.post(path, **{"messages": None, **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    unknown = running.post(path, model="gpt-4", messages=HI)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_a_text_beyond_the_context_is_counted(start: Any) -> None:
    running = start(context=64)
    long = "word " * 200
    assert running.post("/tokenize", prompt=long).json()["count"] > 64
    messages = [{"role": "user", "content": long}]
    assert running.post("/tokenize", messages=messages).json()["count"] > 64
    assert running.post("/v1/chat/completions/render", messages=messages).status_code == 400
