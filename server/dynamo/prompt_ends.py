"""What the end of a prompt tells when only its tokens are known: a thinking block that is open, and stable lengths.

A worker gets token ids, not the conversation. How a template opens an answer is a function of the template alone, so
a few small conversations are rendered once; a prompt that ends like one of them keeps that one's stable lengths,
counted from its end. What must stay true: only what lies within the opening of the answer is told this way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

_USER: Final = {"role": "user", "content": "x"}
_CALL: Final = {"type": "function", "function": {"name": "x", "arguments": {}}}
_RESULT: Final = ({"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "x"})
_TOOL: Final = {"type": "function", "function": {"name": "x", "parameters": {"type": "object", "properties": {}}}}
_MODES: Final[tuple[Mapping[str, Any], ...]] = ({}, {"enable_thinking": True}, {"enable_thinking": False})


class PromptEnds:
    """See the module's docstring. Any thread may use it."""

    def __init__(self, renderer: ChatRenderer, tokenizer: Tokenizer) -> None:
        self._control = frozenset(tokenizer.special_ids)
        self._open, self._close = tokenizer.added.get("<think>"), tokenizer.added.get("</think>")
        self._endings = _endings(renderer)

    def thinking_open(self, prompt: Sequence[int]) -> bool:
        """Whether a ``<think>`` block is open: it is the last tag behind the last control token."""
        for token in reversed(prompt):
            if token == self._open:
                return True
            if token == self._close or token in self._control:
                return False
        return False

    def stable_lengths(self, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        """For `Request.stable_lengths`; None when the prompt does not end as a chat prompt of this model does."""
        for ending, from_end in self._endings:
            if prompt[-len(ending) :] == ending:
                return tuple(len(prompt) - count for count in from_end)
        return None


def _endings(renderer: ChatRenderer) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(the opening of an answer, stable lengths counted from its end, descending), longest opening first.

    Of each opening two at most: the earliest place where any next turn may part, and the end, when one may not part at
    all. Those between lie a token or two apart and would cost a snapshot each.
    """
    found: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for messages, options in _conversations():
        try:
            without = renderer.render(messages, **options, add_generation_prompt=False).token_ids
            rendered = renderer.render(messages, **options)
        except RequestError:
            continue  # this template does not take such a turn
        opening = rendered.token_ids[len(without) :]
        if opening and rendered.token_ids[: len(without)] == without:
            counts = (len(rendered.token_ids) - length for length in rendered.stable_lengths)
            found[opening] |= {count for count in counts if count <= len(opening)}
    endings = [(opening, (max(counts), *({0} & counts - {max(counts)}))) for opening, counts in found.items() if counts]
    return sorted(endings, key=lambda ending: -len(ending[0]))


def _conversations() -> Iterator[tuple[list[Mapping[str, Any]], Mapping[str, Any]]]:
    for mode in _MODES:
        yield [_USER], mode
        yield [_USER], {**mode, "tools": [_TOOL]}
        yield [_USER, *_RESULT], {**mode, "tools": [_TOOL]}
