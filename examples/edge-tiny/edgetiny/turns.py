"""Messages in the OpenAI form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Call = tuple[str, dict[str, Any]]


def user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def assistant(text: str = "", calls: Sequence[Call] = ()) -> Message:
    """What the model says and calls."""
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
        ]
    return message


def tool(text: str) -> Message:
    """What a function gives back."""
    return {"role": "tool", "content": text}


def made(messages: list[Message], tools: list[Message] | None = None, thought: str = "") -> dict[str, Any]:
    """A conversation in the making; `thought` is what the last turn may think first."""
    return {"messages": messages, "tools": tools, "thought": thought}
