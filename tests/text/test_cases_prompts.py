"""Prompts of histories that agents send: text in every shape, turns in every order."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "q"}
PARTS = [{"type": "text", "text": "10"}, {"type": "text", "text": "525"}]


def history(role: str, content: Any) -> list[dict[str, Any]]:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    before = {"system": [], "user": [], "assistant": [USER], "tool": [USER, call]}[role]
    return [*before, {"role": role, "content": content}, USER]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_their_text_in_every_role(renderer: ChatRenderer, role: str) -> None:
    assert renderer.render(history(role, PARTS)) == renderer.render(history(role, "10525"))


def test_values_of_arguments_are_printed_as_the_template_prints_them(
    renderer: ChatRenderer, tokenizer: Tokenizer
) -> None:
    arguments = {"enabled": True, "optional": None, "n": 1.0, "s": "x", "l": [True, None]}
    answer = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    text = tokenizer.decode(renderer.render([USER, answer, {"role": "tool", "content": "r"}]).token_ids)
    shown = {name: text.split(f"<parameter={name}>\n")[1].split("\n</parameter>")[0] for name in arguments}
    assert shown["s"] == "x"
    assert shown["n"] == "1.0"
    assert shown["l"] == "[true, null]"
    assert shown["enabled"] in ("true", "True")
    assert shown["optional"] in ("null", "None")


def test_answers_in_a_row_stay_apart(renderer: ChatRenderer, tokenizer: Tokenizer) -> None:
    first, second = ({"role": "assistant", "content": text} for text in ("first", "second"))
    for after in ([], [USER]):
        text = tokenizer.decode(renderer.render([USER, first, second, *after]).token_ids)
        assert text.index("first") < text.index("second")
        assert text.count("<|im_start|>assistant") == 3
