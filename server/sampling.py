"""The sampling fields that chat and text completions share.

Fields beyond the OpenAI API: `top_k` (-1 or 0: off), `min_p`, `repetition_penalty`, `stop_token_ids`, `min_tokens`,
`ignore_eos`, `cache_salt`. Values outside the documented ranges are errors, with one exception: a token limit beyond
the context is clamped to what is left of it.
"""

from __future__ import annotations

import secrets

from edgellm.decode.params import MAX_STOP_STRINGS, SamplingParams
from edgellm.errors import RequestError
from edgellm.server.fields import Fields, bad_value, wrong_type

MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_LOGIT_BIAS = 4096  # entries
_SEED_BITS = 63

# Constraints that other servers take under these names. Obeying them needs a grammar; ignoring them would return text
# that breaks what the client asked for.
UNSUPPORTED_CONSTRAINTS = dict.fromkeys(
    (
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "json_schema",
        "regex",
        "ebnf",
        "grammar",
    ),
    "constrained output is not supported yet",
)

# Accepted without effect: they do not change what a correct answer looks like.
IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)


def read_sampling(fields: Fields, defaults: SamplingParams, *, vocab_size: int, logprobs: int | None) -> SamplingParams:
    """Sampling of one request but for `max_tokens`, which needs the prompt's length (see `clamp_to_context`).

    Without a seed, sampling at temperature above 0 draws a fresh one: equal requests then differ, as clients expect.
    """
    number, integer = fields.number, fields.integer
    temperature = _or(number("temperature", 0.0, 2.0), defaults.temperature)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    if seed is None:
        seed = secrets.randbits(_SEED_BITS) if temperature > 0 else defaults.seed
    top_k = integer("top_k", -1, 2**31)
    return SamplingParams(
        temperature=temperature,
        top_k=defaults.top_k if top_k is None else max(top_k, 0),
        top_p=_or(number("top_p", 0.0, 1.0, above_low=True), defaults.top_p),
        min_p=_or(number("min_p", 0.0, 1.0), defaults.min_p),
        repetition_penalty=_or(number("repetition_penalty", 0.0, 10.0, above_low=True), defaults.repetition_penalty),
        presence_penalty=_or(number("presence_penalty", -2.0, 2.0), defaults.presence_penalty),
        frequency_penalty=_or(number("frequency_penalty", -2.0, 2.0), defaults.frequency_penalty),
        logit_bias=_logit_bias(fields, vocab_size),
        seed=seed,
        min_tokens=integer("min_tokens", 0, 2**31) or 0,
        stop=_stop(fields),
        stop_token_ids=_token_ids(fields, "stop_token_ids", vocab_size),
        ignore_eos=fields.boolean("ignore_eos") or False,
        logprobs=logprobs,
    )


def read_max_tokens(fields: Fields, *names: str) -> int | None:
    """The output limit under any of its names; two that disagree are an error."""
    found = {name: value for name in names if (value := fields.integer(name, 1, 2**63)) is not None}
    if len(set(found.values())) > 1:
        raise bad_value(fields.at(names[0]), f"and {names[1]} are both set and differ")
    return next(iter(found.values()), None)


def clamp_to_context(prompt_tokens: int, max_tokens: int | None, context: int, *, param: str = "messages") -> int:
    """Tokens that may be generated: at least one, at most what the context has left.

    Raises:
        RequestError: the prompt leaves no room for a single token; ``context_length_exceeded``.
    """
    room = context - prompt_tokens
    if room < 1:
        raise RequestError(
            f"prompt is too long: {prompt_tokens} tokens > {context - 1} maximum",
            param=param,
            code="context_length_exceeded",
        )
    return room if max_tokens is None else min(max_tokens, room)


def one_choice(fields: Fields, *names: str) -> None:
    """Refuse anything but a single choice."""
    for name in names:
        count = fields.integer(name, 1, 128)
        if count is not None and count > 1:
            raise bad_value(fields.at(name), f"must be 1: one choice per request is supported, got {count}")


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """(`stream`, `stream_options.include_usage`)."""
    stream = fields.boolean("stream") or False
    options = fields.fields("stream_options")
    return stream, bool(options and options.boolean("include_usage"))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.data.get("stop")
    path = fields.at("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise wrong_type(path, "a string or an array of strings", value)
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_value(path, f"must have at most {MAX_STOP_STRINGS} strings, got {len(strings)}")
    for index, text in enumerate(strings):
        where = path if isinstance(value, str) else f"{path}[{index}]"
        if not isinstance(text, str):
            raise wrong_type(where, "a string", text)
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise bad_value(where, f"must have 1 to {MAX_STOP_LENGTH} characters, got {len(text)}")
    return tuple(strings)


def _token_ids(fields: Fields, name: str, vocab_size: int) -> tuple[int, ...]:
    return tuple(check_token_ids(fields.array(name) or [], fields.at(name), vocab_size))


def check_token_ids(values: list[object], path: str, vocab_size: int) -> list[int]:
    """The values as token ids of the vocabulary.

    Raises:
        RequestError: naming the first that is not an integer in [0, vocab_size).
    """
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(f"{path}[{index}]", "a token id", value)
        if not 0 <= value < vocab_size:
            raise bad_value(f"{path}[{index}]", f"is not a token of this model (0 to {vocab_size - 1})")
    return values  # type: ignore[return-value]


def _logit_bias(fields: Fields, vocab_size: int) -> dict[int, float]:
    reader = fields.fields("logit_bias")
    if reader is None:
        return {}
    if len(reader.data) > MAX_LOGIT_BIAS:
        raise bad_value(reader.path, f"must have at most {MAX_LOGIT_BIAS} entries, got {len(reader.data)}")
    result: dict[int, float] = {}
    for key in reader.data:
        if not (key.isascii() and key.isdecimal() and len(key) <= 9 and int(key) < vocab_size):
            raise bad_value(reader.at(key), f"is not a token id of this model (0 to {vocab_size - 1})")
        result[int(key)] = reader.number(key, -100.0, 100.0) or 0.0
    return result
