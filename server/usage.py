"""The `usage` object, equal for all surfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgellm.runtime.types import Usage


def total_usage(usages: Sequence[Usage | None], per_prompt: int) -> Usage | None:
    """Usage of a request: `usages` of its choices, `per_prompt` to each prompt; None while one is missing.

    A prompt counts once, as its first choice read it; generated tokens of all choices are summed.
    """
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    firsts = known[::per_prompt]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
        cached_tokens=sum(usage.cached_tokens for usage in firsts),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        drafted_tokens=sum(usage.drafted_tokens for usage in known),
        accepted_tokens=sum(usage.accepted_tokens for usage in known),
        verify_steps=sum(usage.verify_steps for usage in known),
        predicted_tokens=sum(usage.predicted_tokens for usage in known),
        accepted_predicted_tokens=sum(usage.accepted_predicted_tokens for usage in known),
    )


def usage_object(
    usage: Usage | None, reasoning_tokens: int | None = None, *, predicted: bool = False
) -> dict[str, Any] | None:
    """`completion_tokens` counts every generated token, reasoning and end of turn included.

    `predicted`: the request had a prediction; of its tokens those count that were drafted.
    """
    if usage is None:
        return None
    result = running_usage(usage.prompt_tokens, usage.completion_tokens)
    result["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    details = {} if reasoning_tokens is None else {"reasoning_tokens": reasoning_tokens}
    if predicted:
        details["accepted_prediction_tokens"] = usage.accepted_predicted_tokens
        details["rejected_prediction_tokens"] = usage.predicted_tokens - usage.accepted_predicted_tokens
    if details:
        result["completion_tokens_details"] = details
    return result


def running_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The totals alone: what is known while the answer is still being made."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
