"""What is told by the end of a prompt agrees with what the renderer knows of the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.server.dynamo.prompt_ends import PromptEnds
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "What is the weather in Rome, and why?"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "Let me look."}
RESULT = {"role": "tool", "content": "sunny"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "user": ([USER], {}),
    "no thinking": ([USER], {"enable_thinking": False}),
    "system": ([{"role": "system", "content": "Be brief."}, USER], {}),
    "tools": ([USER], {"tools": [TOOL]}),
    "tools, no thinking": ([USER], {"tools": [TOOL], "enable_thinking": False}),
    "result": ([USER, CALLED, RESULT], {"tools": [TOOL]}),
    "second turn": ([USER, {"role": "assistant", "content": "Sunny."}, USER], {}),
}


@pytest.fixture
def ends(tokenizer: tuple[Tokenizer, ChatRenderer]) -> PromptEnds:
    return PromptEnds(tokenizer[1], tokenizer[0])


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_stable_lengths_are_the_renderers_or_earlier(
    ends: PromptEnds, tokenizer: tuple[Tokenizer, ChatRenderer], name: str
) -> None:
    messages, options = CONVERSATIONS[name]
    rendered = tokenizer[1].render(messages, **options)
    told = ends.stable_lengths(rendered.token_ids)
    assert told is not None
    size = len(rendered.token_ids)
    assert size - 8 <= min(told) <= max(told) <= size
    near = [length for length in rendered.stable_lengths if length >= size - 8]
    for length in near:  # a snapshot at or a few tokens before what the next prompt repeats
        assert any(length - 4 <= point <= length for point in told)
    assert ends.thinking_open(rendered.token_ids) == rendered.thinking_open


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_next_turn_repeats_what_is_told(
    ends: PromptEnds, tokenizer: tuple[Tokenizer, ChatRenderer], name: str
) -> None:
    messages, options = CONVERSATIONS[name]
    ids = tokenizer[1].render(messages, **options).token_ids
    told = ends.stable_lengths(ids)
    assert told is not None
    answer = {"role": "assistant", "content": "It is sunny."}
    later = tokenizer[1].render([*messages, answer, USER], **options).token_ids
    if not any(message.get("reasoning_content") for message in messages):
        assert later[: min(told)] == ids[: min(told)]


def test_other_prompts_tell_nothing(ends: PromptEnds) -> None:
    assert ends.stable_lengths(()) is None
    assert ends.stable_lengths((5, 6, 7)) is None
    assert not ends.thinking_open((5, 6, 7))


def test_a_block_that_was_closed_is_not_open(ends: PromptEnds, tokenizer: tuple[Tokenizer, ChatRenderer]) -> None:
    encode = tokenizer[0].encode
    assert ends.thinking_open(encode("<|im_start|>assistant\n<think>\nhm", allow_special=True))
    assert not ends.thinking_open(encode("<|im_start|>assistant\n<think>\nhm</think>\nSo", allow_special=True))
    assert not ends.thinking_open(encode("<think><|im_end|>\n<|im_start|>assistant\n", allow_special=True))
