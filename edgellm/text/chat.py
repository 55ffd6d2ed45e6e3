"""Conversations to tokens, and how far the next turn's prompt will agree with this one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

from edgellm.checkpoint.tokenizer_files import chat_template
from edgellm.errors import CheckpointError, RequestError
from edgellm.text.messages import MARK, normalize
from edgellm.text.template import ChatTemplate
from edgellm.text.tokenizer import Tokenizer

_PROBE_CALL = {"type": "function", "function": {"name": "probe", "arguments": {"a": "b"}}}
# What the client's next turn may hold in place of this one's answer: with and without reasoning sent back.
_PROBES: tuple[list[dict[str, Any]], ...] = (
    [
        {"role": "assistant", "content": "", "reasoning_content": "probe", "tool_calls": [_PROBE_CALL]},
        {"role": "tool", "content": "probe"},
    ],
    [{"role": "assistant", "content": "probe"}, {"role": "user", "content": "probe"}],
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt.

    `stable_lengths`: how much of it the conversation's next prompt repeats, ascending, one for each way it may go on
    (tool results, a user turn). The prompt's own length among them means that the answer is repeated too.
    """

    token_ids: tuple[int, ...]
    stable_lengths: tuple[int, ...]
    thinking_open: bool  # the prompt ends inside a <think> block


class ChatRenderer:
    """Renders with the checkpoint's template. Safe to call from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        literals = sorted(tokenizer.added, key=len, reverse=True)
        self._literal = re.compile(f"({'|'.join(map(re.escape, literals))})" if literals else "(?!)")

    @classmethod
    def load(cls, folder: Path | str, tokenizer: Tokenizer) -> ChatRenderer:
        """The template of a checkpoint or bundle folder.

        Raises:
            CheckpointError: there is none, or it does not compile.
        """
        source = chat_template(Path(folder))
        if source is None:
            raise CheckpointError(f"{folder}: no chat template (chat_template.jinja or in tokenizer_config.json)")
        return cls(ChatTemplate(source, str(folder)), tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """Tokens of a conversation.

        Args:
            continue_final_message: leave the last (assistant) message open so that generation continues it.
            template_kwargs: passed to the template, e.g. enable_thinking, preserve_thinking.

        Raises:
            RequestError: the messages are malformed, or the template refuses them; names the field.
        """
        clean = normalize(messages, self._literal)
        if continue_final_message and clean[-1]["role"] != "assistant":
            raise RequestError(
                "continue_final_message needs a last message of the assistant", param="continue_final_message"
            )
        values = {**template_kwargs, "tools": list(tools) if tools else None}
        text = self._template.render(
            messages=clean, add_generation_prompt=add_generation_prompt and not continue_final_message, **values
        )
        if continue_final_message:
            text = _reopen(text, clean[-1]["content"])
            ids = self._encode(text)
            return Rendered(tuple(ids), (len(ids),), _thinking_open(text))
        ids = self._encode(text)
        return Rendered(tuple(ids), self._stable(clean, text, ids, values), _thinking_open(text))

    def _stable(
        self, clean: list[dict[str, Any]], text: str, ids: list[int], values: dict[str, Any]
    ) -> tuple[int, ...]:
        """Common token prefixes of this prompt and each probed continuation; without tools only a user turn follows."""
        lengths = set()
        for probe in _PROBES if values["tools"] else _PROBES[1:]:
            try:
                longer = self._template.render(messages=clean + probe, add_generation_prompt=True, **values)
            except RequestError:
                continue  # this template does not take such a turn
            lengths.add(self._common_tokens(text, longer, ids))
        return tuple(sorted(lengths)) or (len(ids),)

    def _common_tokens(self, text: str, longer: str, ids: list[int]) -> int:
        if longer.startswith(text):
            return len(ids)
        # Everything before the last control token inside the common text has the same tokens: compare only from there.
        shared = len(commonprefix([text, longer]))  # noqa: RUF071 - plain strings, not paths
        cut = max((match.start() for match in self._literal.finditer(text, 0, shared)), default=0)
        head = len(self._encode(text[:cut])) if cut else 0
        tail = self._encode(longer[cut:])
        count = head
        for a, b in zip(ids[head:], tail, strict=False):
            if a != b:
                break
            count += 1
        return count

    def _encode(self, text: str) -> list[int]:
        """Tokens of rendered text; marked literals are ordinary text."""
        if MARK not in text:
            return self._tokenizer.encode(text, allow_special=True)
        ids: list[int] = []
        for piece in self._literal.split(text):
            if piece in self._tokenizer.added:
                ids.append(self._tokenizer.added[piece])
            elif piece:
                ids.extend(self._tokenizer.encode(piece.replace(MARK, ""), allow_special=False))
        return ids


def _reopen(text: str, content: str) -> str:
    """Cut what the template puts after the last message's content."""
    at = text.rfind(content.rstrip()) if content.strip() else -1
    if at < 0:
        raise RequestError(
            "the template does not keep the last message's text; it cannot be continued", param="continue_final_message"
        )
    return text[: at + len(content.rstrip())]


def _thinking_open(text: str) -> bool:
    return text.rfind("<think>") > text.rfind("</think>") and text.rstrip().endswith("<think>")
