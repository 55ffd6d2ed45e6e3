"""POST /v1/completions: raw text or token ids in, text out.

Rules that clients may rely on, besides what `parameters.COMPLETION` says of each field:
* `prompt` is a string, an array of token ids, or an array of either. Control-token literals in a string are control
  tokens: whoever writes raw prompts writes the markup.
* Choices are numbered prompt by prompt: choice i of prompt p has the index p·n + i. With a seed, each prompt's choices
  are those of a request for it alone; without one, equal prompts get different randomness.
* The default limit is the OpenAI API's 16 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgellm.decode.params import MAX_LOGPROBS, SamplingParams
from edgellm.errors import RequestError
from edgellm.runtime.types import Request
from edgellm.server.answer import Facts, Job, Kind, OpenAIAnswer
from edgellm.server.body import parse_object
from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.choices import check_total, fresh_seed, one_per_choice, read_n
from edgellm.server.completion_answer import CompletionChoice
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.names import check_model, new_id, system_fingerprint
from edgellm.server.parameters import COMPLETION
from edgellm.server.retention import read_cache
from edgellm.server.sampling import (
    check_token_ids,
    clamp_to_context,
    read_count,
    read_prediction,
    read_sampling,
    read_stream,
)
from edgellm.server.sessions.hints import hinted, read_hints
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import check_end, read_grammar
from edgellm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

DEFAULT_MAX_TOKENS = 16
_KIND = Kind(chunk="text_completion", whole="text_completion")


class _Prompt(NamedTuple):
    path: str  # of the field it came from
    tokens: tuple[int, ...]
    text: str


def read_completion(body: bytes, llm: LLM, settings: ServerSettings, caller: Caller = ANONYMOUS) -> Job:
    """Everything between the body's bytes and the engine.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    model = check_model(fields, settings)
    fields.refuse(COMPLETION.refused)
    prediction = read_prediction(fields, llm.tokenizer, llm.info.max_tokens)
    n = _read_n(fields, settings)
    streaming = read_stream(fields)
    limit = read_count(fields, "max_tokens", "max_completion_tokens") or DEFAULT_MAX_TOKENS
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    echo = _read_echo(fields, logprobs)
    cache = read_cache(fields, settings)
    hints = read_hints(fields, reasoning=False).behind(caller.hints)
    sampling = read_sampling(fields, settings, vocab_size=llm.tokenizer.vocab_size, logprobs=logprobs)
    grammar, param = read_grammar(fields, with_response_format=False)
    check_end(fields, sampling, grammar, param)
    prompts = _read_prompts(fields, llm.tokenizer, n, settings.max_choices)
    request_id = new_id("cmpl")
    requests: list[Request] = []
    for prompt in prompts:
        room = clamp_to_context(len(prompt.tokens), limit, llm.info.max_tokens, param=prompt.path)
        request = Request(
            id=request_id,
            prompt=prompt.tokens,
            sampling=replace(_seeded(fields, sampling, first=not requests), max_tokens=room),
            cache=cache,
            deadline_s=settings.deadline_s,
            prediction=prediction,
        )
        requests += [
            replace(each, constraint=llm.constraints.make(grammar, param=param, thinking_open=False))
            for each in one_per_choice(hinted(request, hints), n, first=len(requests))
        ]
    choices = [
        CompletionChoice(
            index, llm.tokenizer, echo=prompts[index // n].text if echo else "", logprobs=logprobs is not None
        )
        for index in range(len(requests))
    ]
    facts = Facts()
    answer = OpenAIAnswer(
        _KIND,
        requests,
        choices,
        model=model,
        fingerprint=system_fingerprint(llm.info.fingerprint),
        per_prompt=n,
        streaming=streaming,
        metadata=caller.metadata,
        extra=hints.extra,
        facts=facts,
    )
    return Job(tuple(requests), answer, streaming.stream, "completion", expected_output=hints.osl or 0, facts=facts)


def _read_n(fields: Fields, settings: ServerSettings) -> int:
    n = read_n(fields, settings.max_n)
    best_of = fields.integer("best_of", 1, 2**31)
    if best_of not in (None, n):
        raise unsupported(fields.at("best_of"), f"choosing among more answers is not supported: must equal n ({n})")
    return n


def _read_echo(fields: Fields, logprobs: int | None) -> bool:
    echo = fields.boolean("echo") or False
    if echo and logprobs is not None:
        raise unsupported(fields.at("echo"), "not together with logprobs: those of prompts are not computed")
    return echo


def _seeded(fields: Fields, sampling: SamplingParams, *, first: bool) -> SamplingParams:
    """Sampling of one prompt's first choice: without a seed, a prompt behind the first draws its own."""
    if first or sampling.temperature == 0 or fields.data.get("seed") is not None:
        return sampling
    return replace(sampling, seed=fresh_seed())


def _read_prompts(fields: Fields, tokenizer: Tokenizer, n: int, max_choices: int) -> list[_Prompt]:
    value = fields.data.get("prompt")
    path = fields.at("prompt")
    if value is None:
        raise bad_value(path, "is required")
    if not (isinstance(value, list) and value and isinstance(value[0], (str, list))):
        return [_read_prompt(value, path, tokenizer)]
    check_total(len(value), n, max_choices, path)
    return [_read_prompt(entry, f"{path}[{index}]", tokenizer) for index, entry in enumerate(value)]


def _read_prompt(value: Any, path: str, tokenizer: Tokenizer) -> _Prompt:
    if isinstance(value, str):
        try:
            prompt = _Prompt(path, tuple(tokenizer.encode(value, allow_special=True)), value)
        except RequestError as error:
            raise RequestError(str(error), param=path, code=error.code) from error
    elif isinstance(value, list):
        tokens = check_token_ids(value, path, tokenizer.vocab_size)
        prompt = _Prompt(path, tuple(tokens), tokenizer.decode(tokens))
    else:
        raise wrong_type(path, "a string or an array of token ids", value)
    if not prompt.tokens:
        raise bad_value(path, "must not be empty")
    return prompt
