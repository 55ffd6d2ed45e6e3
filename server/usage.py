"""The `usage` object, equal for all surfaces."""

from __future__ import annotations

from typing import Any

from edgellm.runtime.types import Usage


def usage_object(usage: Usage | None, reasoning_tokens: int | None = None) -> dict[str, Any] | None:
    """`completion_tokens` counts every generated token, reasoning and end of turn included."""
    if usage is None:
        return None
    result: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        result["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return result
