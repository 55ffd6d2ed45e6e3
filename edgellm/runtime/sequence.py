"""One request from submission to its last token: its place, its sampler and text, and what it has used.

What must stay true: `length` is the number of committed tokens in the slot; they are the prompt's first `length` ones
and, after prefill, all of the prompt and the first generated tokens. The last generated token, `root`, is not committed
yet. Tokens are taken only through `take`, which cuts a run where a stop string ends in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from edgellm.cache import Lease, SnapshotPoint, TokenKey
from edgellm.decode.accept import Accepted
from edgellm.decode.prediction import PredictionReader
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import StopRule
from edgellm.runtime.generation import Channel
from edgellm.runtime.types import FinishReason, Output, Request, Timing, Usage
from edgellm.text.tokenizer import Tokenizer


class Phase(Enum):
    QUEUED = "queued"  # no slot yet
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one step added to a sequence."""

    path: tuple[int, ...]  # tree nodes to commit, for a verified tree
    output: Output  # without usage and timing; finish_reason when the sequence is over


class Sequence:
    """See the module's docstring.

    Args:
        request: already checked.
        key: its prompt, packed.
        channel: where outputs go.
        order: number of the request, ascending.
        now: seconds, when it was submitted.
        context: most tokens of a sequence.
        eos: tokens that end it.
        spoken: texts of control tokens that belong to the answer's text.
    """

    __slots__ = (
        "accepted",
        "accepted_predicted",
        "channel",
        "deadline",
        "drafted",
        "first_token_at",
        "generated",
        "key",
        "lease",
        "length",
        "order",
        "phase",
        "points",
        "predicted",
        "prediction",
        "rank",
        "request",
        "restored",
        "retention",
        "root",
        "sampler",
        "slot",
        "started_at",
        "stop",
        "submitted_at",
        "text",
        "verified",
    )

    def __init__(
        self,
        request: Request,
        key: TokenKey,
        channel: Channel,
        tokenizer: Tokenizer,
        *,
        order: int,
        now: float,
        context: int,
        eos: Collection[int],
        spoken: Collection[str] = (),
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.key = key
        self.channel = channel
        self.order = order
        self.rank = (-request.priority, order)  # the lowest goes first
        self.submitted_at = now
        self.deadline = None if request.deadline_s is None else now + request.deadline_s
        self.phase = Phase.QUEUED
        self.slot = -1
        self.lease: Lease | None = None
        self.retention = request.cache.plan(len(key))
        self.points: list[SnapshotPoint] = []  # still to come, the next one last
        self.length = 0
        self.restored = 0
        self.root = -1
        self.generated: list[int] = []
        self.stop = StopRule.of(sampling, eos_token_ids=eos, prompt_tokens=len(key), context=context)
        self.sampler = Sampler(sampling, request.prompt, ending=self.stop.ending, constraint=request.constraint)
        self.text = tokenizer.stream(skip_special=True, stop=sampling.stop, spoken=spoken)
        self.prediction = None if request.prediction is None else PredictionReader(request.prediction)
        self.drafted = 0
        self.accepted = 0
        self.predicted = 0
        self.accepted_predicted = 0
        self.verified = 0
        self.started_at: float | None = None
        self.first_token_at: float | None = None

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.stop.remaining(len(self.generated))

    def guess(self, max_tree: int) -> tuple[int, ...]:
        """What the request's prediction says comes behind `root`, for a tree of `max_tree` nodes."""
        if self.prediction is None:
            return ()
        return self.prediction.draft(self.generated, min(max_tree, self.remaining) - 1)

    def judge(self, drafted: int, accepted: int, *, guessed: bool) -> None:
        """Count one verified tree by its nodes below the root."""
        self.verified += 1
        self.drafted += drafted
        self.accepted += accepted
        if guessed and self.prediction is not None:
            self.prediction.judge(drafted, accepted)
            self.predicted += drafted
            self.accepted_predicted += accepted

    def take(self, accepted: Accepted) -> Taken:
        """Add emitted tokens: their text, up to a stop string if one ends among them.

        A token that ends the sequence (EOS, a stop token) has no text.
        """
        finish = accepted.finish
        shown = accepted.tokens if finish is None or finish.reason != "stop" else accepted.tokens[:-1]
        pushed = self.text.push(shown)
        text, stop = pushed.text, pushed.stop
        reason: FinishReason | None = None
        why: str | int | None = None
        if stop is not None:
            accepted = accepted.first(pushed.used)
            reason, why = "stop", stop
        elif finish is not None:
            text += self.text.finish()
            reason, why = finish.reason, finish.token
        self.generated += accepted.tokens
        self.root = accepted.tokens[-1]
        return Taken(
            accepted.path,
            Output(
                token_ids=accepted.tokens,
                text=text,
                logprobs=accepted.logprobs,
                finish_reason=reason,
                stop_reason=why,
            ),
        )

    def held(self) -> TokenKey:
        """The committed tokens."""
        prompt = len(self.key)
        if self.length <= prompt:
            return TokenKey.from_bytes(self.key[: self.length])
        return TokenKey.from_bytes(self.key.data + TokenKey(self.generated[: self.length - prompt]).data)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.key),
            cached_tokens=self.restored,
            completion_tokens=len(self.generated),
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            verify_steps=self.verified,
            predicted_tokens=self.predicted,
            accepted_predicted_tokens=self.accepted_predicted,
        )

    def timing(self, now: float) -> Timing:
        """What has not happened by `now` counts as happening now."""
        started = now if self.started_at is None else self.started_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timing(started - self.submitted_at, first - self.submitted_at, now - self.submitted_at)
