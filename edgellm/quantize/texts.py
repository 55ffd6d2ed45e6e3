"""Texts to evaluate and calibrate on: JSONL of conversations, or plain text.

A line of JSONL is ``{"messages": […], "tools": […]}`` in the OpenAI form (tools and other fields may be absent), or
``{"text": "…"}``. A file that is neither .jsonl nor .json is one text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from edgellm.errors import ConfigError, RequestError
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """One text.

    Attributes:
        ids: its tokens, two at least.
        answer: where the answer of a conversation that the assistant ends begins in `ids`; None for other texts.
    """

    ids: list[int]
    answer: int | None = None


def check_tokens(texts: Sequence[Sequence[int]], vocab: int) -> None:
    """See that texts to calibrate on can be run.

    Raises:
        ConfigError: one has fewer than two tokens, or a token that the model lacks.
    """
    for number, text in enumerate(texts, 1):
        if len(text) < 2:
            raise ConfigError(f"text {number} of those to calibrate on has fewer than two tokens")
        if not 0 <= min(text) <= max(text) < vocab:
            raise ConfigError(f"text {number} of those to calibrate on has a token outside the vocabulary of {vocab}")


def read_texts(path: Path, folder: Path, *, limit: int | None, longest: int) -> list[Text]:
    """`token_texts` of `path`, all at once, with the tokenizer and chat template of a checkpoint or bundle `folder`."""
    tokenizer = Tokenizer.load(folder)
    return list(token_texts(path, tokenizer, ChatRenderer.load(folder, tokenizer), limit=limit, longest=longest))


def token_texts(
    path: Path, tokenizer: Tokenizer, renderer: ChatRenderer, *, limit: int | None, longest: int
) -> Iterator[Text]:
    """Each text of a file, cut to `longest` tokens.

    A conversation ends as the template ends its last message; one that the user ends gets the opening of an answer.

    Args:
        limit: texts; all by default.

    Raises:
        ConfigError: the file cannot be read, holds no text, or a line is none of the above; names the line.
    """
    count = 0
    for where, text in _all(path, tokenizer, renderer):
        if len(text.ids) < 2:
            raise ConfigError(f"{where}: a text needs at least two tokens")
        yield Text(text.ids[:longest], text.answer if (text.answer or 0) < longest else None)
        count += 1
        if count == limit:
            return
    if not count:
        raise ConfigError(f"{path} holds no text")


def _all(path: Path, tokenizer: Tokenizer, renderer: ChatRenderer) -> Iterator[tuple[str, Text]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if path.suffix.lower() not in (".jsonl", ".json"):
        yield str(path), Text(tokenizer.encode(text, allow_special=False))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _entry(where, line, tokenizer, renderer)


def _entry(where: str, line: str, tokenizer: Tokenizer, renderer: ChatRenderer) -> Text:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    try:
        return _tokens(where, entry, tokenizer, renderer)
    except (RequestError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _tokens(where: str, entry: Any, tokenizer: Tokenizer, renderer: ChatRenderer) -> Text:
    if isinstance(entry, dict) and "text" in entry and "messages" in entry:
        raise ConfigError(f"{where} has both messages and a text")
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        return Text(tokenizer.encode(entry["text"], allow_special=False))
    messages = entry.get("messages") if isinstance(entry, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"{where} has neither messages nor a text")
    tools = entry.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ConfigError(f"{where}: tools must be an array of objects")
    asked = isinstance(messages[-1], dict) and messages[-1].get("role") != "assistant"
    ids = renderer.render(messages, tools, add_generation_prompt=asked).token_ids
    if asked or len(messages) == 1:
        return Text(list(ids))
    # Without thinking the prompt ends with the empty block that the template writes before the answer.
    prompt = renderer.render(messages[:-1], tools, enable_thinking=False).token_ids
    same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, prompt, strict=False))
    return Text(list(ids), sum(1 for _ in same))
