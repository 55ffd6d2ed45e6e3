"""When a sequence ends by its tokens: EOS, stop tokens, the output limit, the end of the context.

Stop strings are a matter of text and live with the detokenizer. What must stay true: the same limit holds with and
without speculation, and nothing after the finishing token is ever emitted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from edgellm.decode.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. `token` is the stop token that matched; None for EOS and for limits."""

    reason: Literal["stop", "length"]
    token: int | None = None


@dataclass(frozen=True, slots=True)
class StopRule:
    """The token-level end of one sequence.

    `eos` ends with no stop reason, `stop_tokens` with the token as the reason (a token in both is a stop token: the
    client asked for it). `limit` is the number of tokens to generate at most.
    """

    eos: frozenset[int]
    stop_tokens: frozenset[int]
    limit: int

    @classmethod
    def of(
        cls, params: SamplingParams, *, eos_token_ids: Collection[int], prompt_tokens: int, context: int
    ) -> StopRule:
        """The rule of a request. Prompt and output together fill at most `context` tokens."""
        room = max(context - prompt_tokens, 0)
        return cls(
            eos=frozenset() if params.ignore_eos else frozenset(eos_token_ids),
            stop_tokens=frozenset(params.stop_token_ids),
            limit=room if params.max_tokens is None else min(room, params.max_tokens),
        )

    @property
    def ending(self) -> frozenset[int]:
        """Every token that ends the sequence."""
        return self.eos | self.stop_tokens

    def remaining(self, generated: int) -> int:
        """Tokens that may still be emitted after `generated`. A tree deeper than this minus one is wasted."""
        return self.limit - generated

    def check(self, token: int, generated: int) -> Finish | None:
        """Whether the sequence ends with `token`, the `generated`-th output token (counted from 1)."""
        if token in self.stop_tokens:
            return Finish("stop", token)
        if token in self.eos:
            return Finish("stop")
        return Finish("length") if generated >= self.limit else None
