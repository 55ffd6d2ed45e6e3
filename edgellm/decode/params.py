"""What a request may ask of decoding. Frozen; validated on construction with the field named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Defaults are greedy.

    Order of application: logit_bias, repetition / presence / frequency penalties (over prompt + output for
    repetition, output only for the others), constraint mask, temperature, top_k, top_p, min_p, draw.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0  # randomness is a function of (seed, position) only
    max_tokens: int | None = None  # None: up to the context length
    min_tokens: int = 0  # EOS is masked before this many tokens
    stop: tuple[str, ...] = ()  # stop strings; the match is not part of the text
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # top alternatives to report per token (0: only the chosen one); None: off


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Shape of the draft tree. steps=0 turns speculation off; top_k=1 gives a chain."""

    steps: int = 8
    top_k: int = 2
    nodes: int = 16  # verified nodes, root included

    @property
    def enabled(self) -> bool:
        return self.steps > 0 and self.nodes > 1
