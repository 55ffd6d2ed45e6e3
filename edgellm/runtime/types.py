"""Requests in, outputs out: the contract between the engine loop and everything above it (LLM, server)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from edgellm.cache.retention import DECODE_PRIORITY, DEFAULT_PRIORITY, RetentionPlan, TokenRange, default_ranges
from edgellm.decode.constraint import Constraint
from edgellm.decode.logprobs import TokenLogprob as TokenLogprob
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.prediction import Prediction

FinishReason = Literal["stop", "length", "abort", "deadline", "error"]


@dataclass(frozen=True, slots=True)
class CacheParams:
    """How a request uses the prefix cache."""

    read: bool = True
    write: bool = True
    salt: str = ""  # tenant: prefixes are never shared across salts
    ranges: tuple[TokenRange, ...] = ()  # retention of prompt tokens, disjoint; the default priority 35 elsewhere
    decode_priority: int | None = None  # retention of generated tokens, 0-100; None: the default 35
    decode_duration_s: float | None = None  # after this it reverts to the default

    def plan(self, prompt_length: int) -> RetentionPlan:
        """What the cache is asked to keep, once the ranges are checked."""
        priority = DEFAULT_PRIORITY if self.decode_priority is None else self.decode_priority
        ranges = tuple(sorted(self.ranges, key=lambda item: item.start))
        return RetentionPlan(prompt_length, ranges, priority, self.decode_duration_s)

    def by_prompt_part(self, head_length: int) -> CacheParams:
        """With a conversation's defaults for what was left open: system prompt and tools stay longest, answers least.

        Args:
            head_length: leading prompt tokens that are system prompt and tools.
        """
        return replace(
            self,
            ranges=self.ranges or default_ranges(head_length),
            decode_priority=DECODE_PRIORITY if self.decode_priority is None else self.decode_priority,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    `stable_lengths` are the numbers of leading prompt tokens that the next turn of the conversation may repeat, found
    by the chat renderer; the prompt's own length among them means that the answer is repeated too. None when unknown
    (raw completions): then the whole prompt and the answer count as stable.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams | None = None  # None: the engine's default
    cache: CacheParams = field(default_factory=CacheParams)
    stable_lengths: tuple[int, ...] | None = None
    priority: int = 0  # scheduling: higher first
    deadline_s: float | None = None  # seconds from submission; then finish_reason "deadline"
    constraint: Constraint | None = None  # restricts the tokens; for this request alone, it has state
    prediction: Prediction | None = None  # what the answer is expected to repeat


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int  # prompt tokens restored from the cache
    completion_tokens: int  # tokens generated, EOS or stop token included
    drafted_tokens: int = 0  # draft nodes verified, roots excluded
    accepted_tokens: int = 0  # of those, accepted
    verify_steps: int = 0
    predicted_tokens: int = 0  # of the drafted ones, those that came from the request's prediction
    accepted_predicted_tokens: int = 0

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def accepted_length(self) -> float | None:
        """Mean tokens per verify step, the root included; None when nothing was verified."""
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since submission."""

    queued_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Output:
    """What became known since the previous output of the request. The last one has `finish_reason`.

    Joining all `text` gives the whole text, and it never contains a stop string or half a character.
    `token_ids` are all generated tokens, EOS and stop tokens included; text may lag behind them.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that matched; None for EOS
    error: str | None = None
    usage: Usage | None = None  # with finish_reason
    timing: Timing | None = None  # with finish_reason


def turn_ended(finish_reason: FinishReason | None, stop_reason: str | int | None) -> bool:
    """Whether the model itself ended its turn, with an end or stop token; a stop string cuts it, as a limit does."""
    return finish_reason == "stop" and not isinstance(stop_reason, str)
