"""Conversations to token ids, with the mask of what the model has to write.

What must stay true: ids are those of `edgellm.text.chat.ChatRenderer` for the same messages; the mask covers exactly
what the model emits after the generation prompt, from the turn's first word to its end token.
"""

from __future__ import annotations

from typing import Any, Final

from edgellm.text.template import ChatTemplate
from edgellm.text.tokenizer import Tokenizer

_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"
_ROLE: Final = "assistant\n"


def render(conv: dict[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> tuple[list[int], list[bool]]:
    """Ids of the whole conversation, and for each whether it carries loss."""
    text = template.render(
        messages=_plain(conv["messages"]),
        tools=conv["tools"],
        add_generation_prompt=False,
        preserve_thinking=conv["preserve_thinking"],
    )
    return _masked(tokenizer.split(text), tokenizer, thinking=conv["thinking"])


def render_prompt(conv: dict[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Ids up to the last assistant turn, with the generation prompt."""
    text = template.render(
        messages=_plain(conv["messages"][:-1]),
        tools=conv["tools"],
        add_generation_prompt=True,
        enable_thinking=conv["thinking"],
        preserve_thinking=conv["preserve_thinking"],
    )
    return tokenizer.encode(text, allow_special=True)


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**message, "content": message["content"] or ""} for message in messages]


def _masked(parts: list[str], tokenizer: Tokenizer, *, thinking: bool) -> tuple[list[int], list[bool]]:
    """Parts are the text cut at added tokens; a turn's parts are: start, role, then perhaps the think block."""
    ids: list[int] = []
    mask: list[bool] = []
    turn = -1  # index of the part that holds the role of the assistant's turn being read, -1 outside
    starts = -1  # index of the part in which the loss of this turn starts
    for n, part in enumerate(parts):
        if part == _START and parts[n + 1].startswith(_ROLE):
            turn = n + 1
            starts = turn if parts[n + 2] != "<think>" else n + 3 if thinking else n + 5
        encoded = tokenizer.encode_part(part)
        inside = turn >= 0 and n >= starts
        given = len(tokenizer.encode_part(_given(part))) if inside and n == starts else 0
        ids.extend(encoded)
        mask.extend([inside and k >= given for k in range(len(encoded))])
        if part == _END:
            turn = -1
    return ids, mask


def _given(part: str) -> str:
    """What the generation prompt has of the part in which the loss starts: the role, or the think block's newlines."""
    return _ROLE if part.startswith(_ROLE) else part[: len(part) - len(part.lstrip("\n"))]
