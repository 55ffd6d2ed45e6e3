"""The sampling fields that chat and text completions share.

Fields beyond the OpenAI API: `top_k` (-1 or 0: off), `min_p`, `repetition_penalty`, `stop_token_ids`, `min_tokens`,
`ignore_eos`, `skip_special_tokens`, `cache_salt`. Values outside the documented ranges are errors, with one exception:
a token limit beyond the context is clamped to what is left of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edgellm.decode.params import SamplingParams
from edgellm.decode.prediction import Prediction
from edgellm.errors import RequestError
from edgellm.server.choices import fresh_seed
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.messages import read_text
from edgellm.server.settings import ServerSettings
from edgellm.text.tokenizer import Tokenizer

MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_LOGIT_BIAS = 4096  # entries
_CHARS_PER_TOKEN = 8  # of predictions, at most: more text than the context can hold is not even looked at


def read_sampling(fields: Fields, settings: ServerSettings, *, vocab_size: int, logprobs: int | None) -> SamplingParams:
    """Sampling of one request but for `max_tokens`, which needs the prompt's length (see `clamp_to_context`).

    Without a seed, sampling at temperature above 0 draws a fresh one: equal requests then differ, as clients expect.
    """
    if fields.boolean("skip_special_tokens") is False:
        raise unsupported(fields.at("skip_special_tokens"), "control tokens are never shown")
    return replace(
        read_draw(fields, settings.sampling),
        logit_bias=_logit_bias(fields, vocab_size),
        min_tokens=fields.integer("min_tokens", 0, 2**31) or 0,
        stop=_stop(fields, settings.max_stops),
        stop_token_ids=_token_ids(fields, "stop_token_ids", vocab_size),
        ignore_eos=fields.boolean("ignore_eos") or False,
        logprobs=logprobs,
    )


def read_draw(fields: Fields, defaults: SamplingParams) -> SamplingParams:
    """How a token is drawn: temperature, truncation, penalties, seed; all else is as `SamplingParams` has it."""
    number = fields.number
    temperature = _or(number("temperature", 0.0, 2.0), defaults.temperature)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    if seed is None:
        seed = fresh_seed() if temperature > 0 else defaults.seed
    top_k = fields.integer("top_k", -1, 2**31)
    return SamplingParams(
        temperature=temperature,
        top_k=defaults.top_k if top_k is None else max(top_k, 0),
        top_p=_or(number("top_p", 0.0, 1.0, above_low=True), defaults.top_p),
        min_p=_or(number("min_p", 0.0, 1.0), defaults.min_p),
        repetition_penalty=_or(number("repetition_penalty", 0.01, 10.0), defaults.repetition_penalty),
        presence_penalty=_or(number("presence_penalty", -2.0, 2.0), defaults.presence_penalty),
        frequency_penalty=_or(number("frequency_penalty", -2.0, 2.0), defaults.frequency_penalty),
        seed=seed,
    )


def read_count(fields: Fields, *names: str, low: int = 1) -> int | None:
    """A number of tokens, at least `low`, under any of its names; two that disagree are an error."""
    found = {name: value for name in names if (value := fields.integer(name, low, 2**63)) is not None}
    if len(set(found.values())) > 1:
        first, second, *_ = found
        raise bad_value(fields.at(first), f"and {second} are both set and differ")
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


class Streaming(NamedTuple):
    """How the answer is to be sent."""

    stream: bool
    usage: bool  # a last chunk with the usage
    running_usage: bool  # and every other chunk with the usage up to it


def read_stream(fields: Fields) -> Streaming:
    """`stream` and `stream_options`, which have no effect without it."""
    stream = fields.boolean("stream") or False
    options = fields.fields("stream_options")
    if options is None:
        return Streaming(stream, False, False)
    usage = options.boolean("include_usage") or False
    return Streaming(stream, usage, usage and bool(options.boolean("continuous_usage_stats")))


def read_prediction(fields: Fields, tokenizer: Tokenizer, context: int) -> Prediction | None:
    """`prediction`, the text that the answer is expected to repeat. What does not fit the context is cut."""
    prediction = fields.fields("prediction")
    if prediction is None:
        return None
    if (kind := prediction.string("type")) != "content":
        raise bad_value(prediction.at("type"), f"must be 'content', got {kind!r:.40}")
    text = read_text(prediction, "content")
    if text is None:
        raise bad_value(prediction.at("content"), "is required")
    return Prediction.of(tokenizer.encode(text[: _CHARS_PER_TOKEN * context], allow_special=False), context)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop(fields: Fields, limit: int) -> tuple[str, ...]:
    value = fields.data.get("stop")
    path = fields.at("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise wrong_type(path, "a string or an array of strings", value)
    if len(strings) > limit:
        raise bad_value(path, f"must have at most {limit} strings, got {len(strings)}")
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
