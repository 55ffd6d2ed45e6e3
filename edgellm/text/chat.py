"""Conversations to tokens, and how much of them the conversation's next prompt will repeat.

What must stay true: tokens are those of the checkpoint's template and tokenizer; no text of a client becomes a control
token; prompts that begin with the same rendered text begin with the same tokens, up to the last token before they part.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from edgellm.checkpoint.tokenizer_files import chat_template
from edgellm.errors import CheckpointError, RequestError
from edgellm.text.dialects import detect
from edgellm.text.marks import MARK, restore
from edgellm.text.messages import Message, Normalizer
from edgellm.text.template import ChatTemplate
from edgellm.text.tokenizer import Tokenizer

_CUT: Final = "\ufdd2"  # where a continued message ends; a noncharacter that survives trimming
_RESERVED: Final = ("messages", "tools", "add_generation_prompt", "continue_final_message")
_CALL: Final = {"type": "function", "function": {"name": "x", "arguments": {"x": "x"}}}
_TOOL_TURN: Final = ({"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "x"})
_USER_TURN: Final = ({"role": "assistant", "content": "x"}, {"role": "user", "content": "x"})
_REASONING: Final = {"reasoning_content": "x"}
_HEADS: Final = 32  # rendered heads that are remembered


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt.

    Attributes:
        token_ids: its tokens.
        stable_lengths: how many of them the conversation's next prompt repeats, ascending, one for each way it may go
            on. The prompt's own length among them means that the answer's tokens may be repeated too.
        thinking_open: the prompt ends inside a ``<think>`` block.
        head_length: how many of its tokens every conversation with the same leading system messages and tools begins
            with; 0 without either.
    """

    token_ids: tuple[int, ...]
    stable_lengths: tuple[int, ...]
    thinking_open: bool
    head_length: int


class _Prompt(NamedTuple):
    parts: list[str]  # the rendered text cut at added tokens
    encoded: list[Sequence[int]]  # ids of each part
    ids: tuple[int, ...]  # all of them


class _Head(NamedTuple):
    parts: list[str]  # of a conversation that begins with the head and goes on with another text
    length: int  # tokens that the last prompt shared with it


class ChatRenderer:
    """Renders with the checkpoint's template. Any thread may call it.

    Attributes:
        dialect: how the model writes tool calls, told by the template.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.dialect = detect(template.source)
        self._template = template
        self._tokenizer = tokenizer
        self._normalizer = Normalizer(tokenizer, late_system=_takes_late_system(template))
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._heads_guard = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str, tokenizer: Tokenizer) -> ChatRenderer:
        """The template of a checkpoint or bundle folder.

        Raises:
            CheckpointError: there is none, or it does not compile.
        """
        source = chat_template(Path(folder))
        if source is None:
            raise CheckpointError(f"{folder}: no chat template (chat_template.jinja or in tokenizer_config.json)")
        return cls(ChatTemplate(source, f"{folder}: chat template"), tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """Tokens of a conversation; `messages` holds what messages may look like.

        Args:
            messages: in the OpenAI form.
            tools: in the OpenAI form; printed by the template.
            add_generation_prompt: end with the opening of the answer.
            continue_final_message: leave the last message, the assistant's, open, so that the answer continues it;
                there is no generation prompt then.
            template_kwargs: the template's own, e.g. ``enable_thinking``, ``preserve_thinking``.

        Raises:
            RequestError: the messages are malformed, or the template refuses them; names the field.
        """
        for name in _RESERVED:
            if name in template_kwargs:
                raise RequestError(f"chat_template_kwargs.{name} is reserved", param=f"chat_template_kwargs.{name}")
        conversation = self._normalizer.messages(messages)
        values = {
            **self._tokenizer.named,
            **self._normalizer.values(template_kwargs, "chat_template_kwargs"),
            "tools": self._normalizer.values(tools, "tools") if tools else None,
        }
        if continue_final_message:
            parts = self._tokenizer.split(self._continued(conversation, values))
        else:
            parts = self._parts(conversation, values, generate=add_generation_prompt)
        encoded = [self._ids(part) for part in parts]
        prompt = _Prompt(parts, encoded, tuple(chain.from_iterable(encoded)))
        return Rendered(
            token_ids=prompt.ids,
            stable_lengths=self._stable_lengths(conversation, values, prompt, continued=continue_final_message),
            thinking_open=self._thinking_open(parts),
            head_length=self._head_length(conversation, values, prompt),
        )

    def _parts(self, conversation: Sequence[Message], values: Mapping[str, Any], *, generate: bool) -> list[str]:
        """The rendered text cut at added tokens."""
        text = self._template.render(messages=conversation, add_generation_prompt=generate, **values)
        return self._tokenizer.split(text)

    def _continued(self, conversation: list[Message], values: Mapping[str, Any]) -> str:
        """Text up to the end of the last message's content, without the space that the template trims behind it."""
        final = conversation[-1]
        if final["role"] != "assistant" or final.get("tool_calls"):
            message = "continue_final_message needs a last message of the assistant without tool calls"
            raise RequestError(message, param="continue_final_message")
        marked = [*conversation[:-1], {**final, "content": f"{final['content']}{_CUT} "}]
        text, _, rest = self._template.render(messages=marked, add_generation_prompt=False, **values).rpartition(_CUT)
        if not text:
            message = "the chat template does not keep the last message's text; it cannot be continued"
            raise RequestError(message, param="continue_final_message")
        return text if rest.startswith(" ") else text.rstrip()

    def _stable_lengths(
        self, conversation: list[Message], values: Mapping[str, Any], prompt: _Prompt, *, continued: bool
    ) -> tuple[int, ...]:
        """Tokens in common with the prompts that may come next.

        With tools the next prompt may hold calls and their results, in any case an answer and a user's turn. Whether
        the answer comes back with its reasoning is seen from this turn's earlier answers; without any it is expected:
        if it then does not, the prompt parts a few tokens before its end, where the user's turn does too.
        """
        lengths = set()
        for follow_up in _follow_ups(conversation, tools=bool(values["tools"]), continued=continued):
            try:
                later = self._parts(follow_up, values, generate=True)
            except RequestError:
                continue  # this template does not take such a turn
            lengths.add(self._common(prompt, later))
        return tuple(sorted(lengths)) or (len(prompt.ids),)

    def _head_length(self, conversation: list[Message], values: Mapping[str, Any], prompt: _Prompt) -> int:
        """Tokens in common with a conversation that has the same head and another first turn.

        That one is rendered once for a head. When the prompt shares less with it than the last one did, it is rendered
        again: a template may print the date.
        """
        turn = next((n for n, message in enumerate(conversation) if message["role"] != "system"), len(conversation))
        if turn == 0 and not values["tools"]:
            return 0
        said = conversation[turn]["content"] if turn < len(conversation) else ""
        other = {"role": "user", "content": "y" if said.lstrip().startswith("x") else "x"}
        probe = [*conversation[:turn], other]
        key = repr((probe, values))
        with self._heads_guard:
            known = self._heads.get(key)
        parts, length = ([], -1) if known is None else (known.parts, self._common(prompt, known.parts))
        if known is None or length < known.length:
            try:
                parts = self._parts(probe, values, generate=True)
            except RequestError:
                return 0  # this template does not take such a turn
            length = self._common(prompt, parts)
        with self._heads_guard:
            self._heads[key] = _Head(parts, length)
            self._heads.move_to_end(key)
            if len(self._heads) > _HEADS:
                self._heads.popitem(last=False)
        return length

    def _common(self, prompt: _Prompt, later: list[str]) -> int:
        """Leading tokens that the prompt shares with a text, given its parts."""
        equal = 0
        for ours, theirs in zip(prompt.parts, later, strict=False):
            if ours != theirs:
                break
            equal += 1
        count = sum(map(len, prompt.encoded[:equal]))
        rest = (token_id for part in later[equal:] for token_id in self._ids(part))
        for our_id, their_id in zip(prompt.ids[count:], rest, strict=False):
            if our_id != their_id:
                break
            count += 1
        return count

    def _ids(self, part: str) -> Sequence[int]:
        if MARK in part:
            return self._tokenizer.encode_plain(restore(part))
        return self._tokenizer.encode_part(part)

    def _thinking_open(self, parts: Sequence[str]) -> bool:
        """Whether the text behind the last control token opens a block and does not close it."""
        added, control = self._tokenizer.added, self._tokenizer.special_ids
        tail: list[str] = []
        for part in reversed(parts):
            if added.get(part) in control:
                break
            tail.append(part)
        text = "".join(reversed(tail))
        return text.rfind("<think>") > text.rfind("</think>")


def _follow_ups(conversation: list[Message], *, tools: bool, continued: bool) -> Iterator[list[Message]]:
    """Conversations that the next request may hold."""
    if continued:
        final = {**conversation[-1], "content": f"{conversation[-1]['content']}x"}
        yield [*conversation[:-1], final, _USER_TURN[1]]
        return
    turn = max((n for n, message in enumerate(conversation) if message["role"] == "user"), default=0)
    answers = [message for message in conversation[turn:] if message["role"] == "assistant"]
    with_reasoning = any(m.get("reasoning_content") or "</think>" in m["content"] for m in answers) or not answers
    reasoning = _REASONING if with_reasoning else {}
    for answer, reply in (_TOOL_TURN, _USER_TURN) if tools else (_USER_TURN,):
        yield [*conversation, {**answer, **reasoning}, reply]


def _takes_late_system(template: ChatTemplate) -> bool:
    turns = ("user", "assistant", "system", "user")
    try:
        text = template.render(messages=[{"role": role, "content": f"<{role}>"} for role in turns])
    except RequestError:
        return False
    return "<system>" in text
