"""Dynamo's internal request (its `PreprocessedRequest`, release 1.6.1) as a request of the engine.

What must stay true: null and absent are the same, and mean the bundle's recommended sampling; a field that changes the
answer and cannot be obeyed is an error that names it; fields that only steer routing change nothing in the answer.

Ignored, because the frontend has seen to them: `annotations`, `mdc_sum`, `router_config_override`, `agent_context`,
`image_cache_scope`, `require_reasoning` (the prompt's end tells it), `extra_args`, of `routing` the ranks and
`expected_output_tokens`, of `sampling_options` `include_stop_str_in_output`, of `output_options` what concerns text.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edgellm.decode.params import MAX_LOGPROBS, SamplingParams
from edgellm.runtime.types import CacheParams, Request
from edgellm.server.dynamo.prompt_ends import PromptEnds
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.sampling import check_token_ids, read_draw
from edgellm.server.structured import check_end, read_grammar

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM
    from edgellm.text.grammars import Grammar

_TOKEN_BYTES: Final = 4
_GUIDED: Final = {name: f"guided_{name}" for name in ("json", "regex", "choice", "grammar")}  # as clients name them
_SAMPLING_KEYS: Final = frozenset(
    {"n", "best_of", "use_beam_search", "length_penalty", "include_stop_str_in_output", "guided_decoding", "top_k"}
    | {"seed", "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}
)
_STOP_KEYS: Final = frozenset(
    {"max_tokens", "stop", "stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden", "min_tokens"}
    | {"ignore_eos", "max_thinking_tokens"}
)
_REFUSED: Final = {
    "prompt_embeds": "prompts are token ids only",
    "multi_modal_data": "this model takes text only",
    "encoder_result": "this model takes text only",
    "prefill_result": "prefill and decode run in one worker",
    "bootstrap_info": "prefill and decode run in one worker",
}


class RequestReader:
    """Reads the requests for one model, whose turns end with the tokens `eos`. Any thread may use it."""

    def __init__(self, llm: LLM, eos: Collection[int]) -> None:
        self._constraints = llm.constraints
        self._defaults = SamplingParams(**llm.recommended_sampling)
        self._eos = frozenset(eos)
        self._vocab_size = llm.info.vocab_size
        self._ends = PromptEnds(llm.renderer, llm.tokenizer)

    def read(self, body: Mapping[str, Any], request_id: str) -> Request:
        """The engine's request for one of Dynamo's.

        Raises:
            RequestError: naming the field that is wrong or not supported.
        """
        request = Fields(body)
        request.refuse(_REFUSED)
        routing = _part(request, "routing")
        if routing.string("lora_name"):
            raise unsupported(routing.at("lora_name"), "there are no adapters")
        prompt = read_token_ids(body.get("token_ids"))
        stops = _known(_part(request, "stop_conditions"), _STOP_KEYS)
        sampling = self._sampling(request, stops)
        grammar, param = _grammar(_part(request, "sampling_options"))
        check_end(stops, sampling, grammar, param)
        return Request(
            id=request_id,
            prompt=prompt,
            sampling=sampling,
            cache=CacheParams(salt=routing.string("cache_salt") or ""),
            stable_lengths=self._ends.stable_lengths(prompt),
            priority=_priority(routing),
            constraint=self._constraints.make(
                grammar,
                param=param,
                thinking_open=self._ends.thinking_open(prompt),
                max_thinking_tokens=stops.integer("max_thinking_tokens", 0, 2**32),
            ),
        )

    def _sampling(self, request: Fields, stops: Fields) -> SamplingParams:
        asked = _known(_part(request, "sampling_options"), _SAMPLING_KEYS)
        for name in ("n", "best_of"):
            if (asked.integer(name, 1, 255) or 1) > 1:
                raise unsupported(asked.at(name), "a worker gives one answer to a request")
        asked.refuse({"use_beam_search": "beams are not searched", "length_penalty": "it belongs to beam search"})
        min_tokens = stops.integer("min_tokens", 0, 2**32) or 0
        ignore_eos = stops.boolean("ignore_eos") or False
        return replace(
            read_draw(asked, self._defaults),
            max_tokens=stops.integer("max_tokens", 1, 2**32),
            min_tokens=min_tokens,
            stop=_stop_strings(stops) if min_tokens == 0 else (),
            stop_token_ids=self._stop_token_ids(request, stops, ignore_eos=ignore_eos),
            ignore_eos=ignore_eos,
            logprobs=_logprobs(_part(request, "output_options")),
        )

    def _stop_token_ids(self, request: Fields, stops: Fields, *, ignore_eos: bool) -> tuple[int, ...]:
        """Stop tokens that are not the model's own ends: those end a turn without being a stop token."""
        sources = [(stops, "stop_token_ids"), (stops, "stop_token_ids_visible"), (stops, "stop_token_ids_hidden")]
        if not ignore_eos:
            sources.append((request, "eos_token_ids"))
        found: set[int] = set()
        for fields, name in sources:
            found.update(check_token_ids(fields.array(name) or [], fields.at(name), self._vocab_size))
        return tuple(sorted(found - self._eos))


def read_token_ids(value: Any) -> tuple[int, ...]:
    """Token ids in either form that the request plane carries: an array, or packed little-endian int32.

    Raises:
        RequestError: it is neither.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        packed = bytes(value)
        if len(packed) % _TOKEN_BYTES:
            raise bad_value("token_ids", f"has {len(packed)} bytes, which are not whole tokens")
        ids = array("i", packed)
        if sys.byteorder == "big":
            ids.byteswap()
        return tuple(ids)
    if not isinstance(value, list | tuple):
        raise wrong_type("token_ids", "an array of token ids", value)
    return tuple(value)


def _part(request: Fields, name: str) -> Fields:
    return request.fields(name) or Fields({}, request.at(name))


def _known(part: Fields, names: frozenset[str]) -> Fields:
    """The part, once nothing in it is set that is not known here: it would change the answer."""
    for name, value in part.data.items():
        if name not in names and value is not None:
            raise unsupported(part.at(name), "is not supported")
    return part


def _priority(routing: Fields) -> int:
    """Higher is sooner. Routers put what they add or take away into `priority_jump`, so it comes first."""
    jump = routing.number("priority_jump", -1e9, 1e9)
    return round(jump) if jump else routing.integer("priority", -(2**31), 2**31) or 0


def _stop_strings(stops: Fields) -> tuple[str, ...]:
    """The frontend cuts the text at them; here they end the work in time and with its usage.

    With `min_tokens` they are the frontend's alone: it lets the text pass them before that many tokens.
    """
    value = stops.data.get("stop")
    return (value,) if isinstance(value, str) else tuple(stops.array("stop") or ())


def _logprobs(output: Fields) -> int | None:
    output.refuse({"prompt_logprobs": "log-probabilities of the prompt are not kept"})
    return output.integer("logprobs", 0, MAX_LOGPROBS)


def _grammar(sampling: Fields) -> tuple[Grammar | None, str]:
    guided = sampling.fields("guided_decoding")
    if guided is None:
        return None, ""
    reasons = {"whitespace_pattern": "white space is chosen here", "structural_tag": "use a grammar"}
    guided.refuse(reasons)
    _known(guided, frozenset(_GUIDED) | set(reasons) | {"backend"})
    asked = {_GUIDED[name]: value for name, value in guided.data.items() if name in _GUIDED}
    return read_grammar(Fields(asked), with_response_format=False)
