"""What a request may ask of decoding. Frozen; validated on construction with the field named.

The ranges are those of the OpenAI API where it has the field (temperature, top_p, penalties, logit_bias, logprobs).
Values that other clients send for "off" (`top_k=-1`) are translated by the API layer, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgellm.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_STEPS = 64
MAX_NODES = 256


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Defaults are greedy.

    Order of application: logit_bias, repetition / presence / frequency penalties (over prompt + output for
    repetition, output only for the others), constraint mask, temperature, top_k, top_p, min_p, draw.

    Raises:
        RequestError: a field is out of range; `param` names it.
    """

    temperature: float = 0.0  # 0 to 2; 0 is greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # above 0, up to 1
    min_p: float = 0.0  # 0 to 1
    repetition_penalty: float = 1.0  # from 0.01; logits of seen tokens are divided by it (multiplied when negative)
    presence_penalty: float = 0.0  # -2 to 2
    frequency_penalty: float = 0.0  # -2 to 2
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # -100 to 100, added to the token's logit
    seed: int = 0  # any integer, folded to 64 bits; randomness is a function of (seed, position) only
    max_tokens: int | None = None  # None: up to the context length
    min_tokens: int = 0  # EOS and stop tokens are masked before this many tokens
    stop: tuple[str, ...] = ()  # stop strings; the match is not part of the text
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # top alternatives to report per token (0: only the chosen one); None: off

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, 2.0)
        _whole("top_k", self.top_k, 0)
        _real("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 1e6)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _whole("seed", self.seed, None)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _bad("min_tokens", f"must not exceed max_tokens ({self.max_tokens}), got {self.min_tokens}")
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        bias = dict(self.logit_bias)
        for token, value in bias.items():
            _whole("logit_bias", token, 0)
            _real(f"logit_bias.{token}", value, -100.0, 100.0)
        if isinstance(self.stop, str):
            raise _bad("stop", "must be a sequence of strings, not one string")
        stop, stop_token_ids = tuple(self.stop), tuple(self.stop_token_ids)
        if len(stop) > MAX_STOP_STRINGS:
            raise _bad("stop", f"must have at most {MAX_STOP_STRINGS} strings, got {len(stop)}")
        for index, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise _bad(f"stop[{index}]", f"must be a string that is not empty, got {text!r}")
        for index, token in enumerate(stop_token_ids):
            _whole(f"stop_token_ids[{index}]", token, 0)
        object.__setattr__(self, "logit_bias", bias)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        object.__setattr__(self, "seed", self.seed & ((1 << 64) - 1))

    def check_vocab(self, vocab_size: int) -> None:
        """Check the token ids against the model.

        Raises:
            RequestError: `logit_bias` or `stop_token_ids` names a token outside [0, vocab_size).
        """
        for token in self.logit_bias:
            if token >= vocab_size:
                raise _bad(f"logit_bias.{token}", f"is not a token of this model (0 to {vocab_size - 1})")
        for index, token in enumerate(self.stop_token_ids):
            if token >= vocab_size:
                raise _bad(f"stop_token_ids[{index}]", f"{token} is not a token of this model (0 to {vocab_size - 1})")


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Shape of the draft tree. steps=0 turns speculation off; top_k=1 gives a chain.

    Raises:
        RequestError: a field is out of range; `param` is `speculation.<field>`.
    """

    steps: int = 8
    top_k: int = 2
    nodes: int = 16  # verified nodes, root included

    def __post_init__(self) -> None:
        _whole("speculation.steps", self.steps, 0, MAX_STEPS)
        _whole("speculation.top_k", self.top_k, 1, MAX_NODES)
        _whole("speculation.nodes", self.nodes, 1, MAX_NODES)

    @property
    def enabled(self) -> bool:
        return self.steps > 0 and self.nodes > 1


def _bad(param: str, problem: str) -> RequestError:
    return RequestError(f"{param} {problem}", param=param, code="invalid_value")


def _real(param: str, value: object, low: float, high: float, *, above_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(param, f"must be a number, got {value!r}")
    if not (low < value <= high if above_low else low <= value <= high):
        span = f"above {low:g}, at most {high:g}" if above_low else f"from {low:g} to {high:g}"
        raise _bad(param, f"must be {span}, got {value!r}")


def _whole(param: str, value: object, low: int | None, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(param, f"must be an integer, got {value!r}")
    if low is not None and value < low:
        raise _bad(param, f"must be at least {low}, got {value}")
    if high is not None and value > high:
        raise _bad(param, f"must be at most {high}, got {value}")
