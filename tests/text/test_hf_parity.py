"""Prompts are those of transformers, token by token, wherever transformers renders the same messages."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from edgellm.text.chat import ChatRenderer

pytestmark = pytest.mark.parity

TOOLS = [{"type": "function", "function": {"name": "w", "description": "a < b & 'c' é", "parameters": {"x": [1.0]}}}]
ARGUMENTS = {"city": "Pa\nris", "on": True, "none": None, "n": 1.0, "list": [True, None], "é": {"a": "é"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": ARGUMENTS}}


def conversation(*, system: bool, reasoning: bool) -> list[dict[str, Any]]:
    extra = {"reasoning_content": "R "} if reasoning else {}
    return [
        *([{"role": "system", "content": " sys "}] if system else []),
        {"role": "user", "content": "q <think>x</think> 日本 é"},
        {"role": "assistant", "content": "<think>\na\n</think>\n\nb", **extra},
        {"role": "user", "content": " go "},
        {"role": "assistant", "content": "t", "tool_calls": [CALL, CALL], **extra},
        {"role": "tool", "tool_call_id": "c1", "content": "20C"},
        {"role": "tool", "tool_call_id": "c2", "content": "21C"},
    ]


def test_prompts_equal_those_of_transformers(renderer: ChatRenderer, checkpoint_dir: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(checkpoint_dir)
    flags = (False, True)
    for tools, system, thinking, reasoning, preserve in itertools.product((None, TOOLS), *[flags] * 4):
        messages = conversation(system=system, reasoning=reasoning)
        for end, generate in itertools.product(range(1 + system, len(messages) + 1), flags):
            options = {"enable_thinking": thinking, "preserve_thinking": preserve, "add_generation_prompt": generate}
            expected = reference.apply_chat_template(messages[:end], tools=tools, return_dict=False, **options)
            assert list(renderer.render(messages[:end], tools, **options).token_ids) == expected
