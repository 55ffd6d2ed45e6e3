"""Dynamo's internal request, field by field."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import RequestError
from edgellm.server.dynamo.requests import RequestReader, read_token_ids

# What Dynamo 1.6.1 sends for {"messages": [...]} and nothing else: every field is there, null.
PLAIN: dict[str, Any] = {
    "model": "tiny",
    "token_ids": [5, 6, 7],
    "stop_conditions": {
        "max_tokens": None,
        "stop": None,
        "stop_token_ids": None,
        "stop_token_ids_visible": None,
        "stop_token_ids_hidden": [],
        "min_tokens": None,
        "ignore_eos": None,
        "max_thinking_tokens": None,
    },
    "sampling_options": {
        "n": None,
        "best_of": None,
        "presence_penalty": None,
        "frequency_penalty": None,
        "repetition_penalty": None,
        "temperature": None,
        "top_p": None,
        "top_k": None,
        "min_p": None,
        "use_beam_search": None,
        "length_penalty": None,
        "seed": None,
        "include_stop_str_in_output": None,
        "guided_decoding": None,
    },
    "output_options": {
        "logprobs": None,
        "prompt_logprobs": None,
        "skip_special_tokens": None,
        "formatted_prompt": None,
        "return_tokens_as_token_ids": None,
    },
    "eos_token_ids": [],
    "mdc_sum": "5f6c",
    "annotations": [],
    "routing": {"dp_rank": 0},
    "router_config_override": None,
    "agent_context": {"session_id": "s1", "input_trigger": "user_message"},
    "image_cache_scope": "s1",
}


@pytest.fixture
def llm(serve: Any) -> Any:
    return serve().llm


@pytest.fixture
def eos(llm: Any) -> int:
    return int(llm.tokenizer.eos_token_ids[0])


@pytest.fixture
def reader(llm: Any, eos: int) -> RequestReader:
    llm.recommended_sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    return RequestReader(llm, [eos])


def body(**parts: Any) -> dict[str, Any]:
    """`PLAIN` with fields of its parts replaced."""
    made = dict(PLAIN)
    for name, value in parts.items():
        made[name] = {**(made.get(name) or {}), **value} if isinstance(value, dict) else value
    return made


def test_null_is_the_recommended_sampling(reader: RequestReader, eos: int) -> None:
    request = reader.read(body(eos_token_ids=[eos], stop_conditions={"stop_token_ids_hidden": [eos]}), "id")
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
    assert sampling.max_tokens is None
    assert sampling.stop_token_ids == ()  # the model's own ends are no stop tokens
    assert not sampling.ignore_eos
    assert sampling.logprobs is None
    assert (request.id, request.prompt, request.priority, request.cache.salt) == ("id", (5, 6, 7), 0, "")
    assert request.constraint is None


def test_absent_is_null(reader: RequestReader) -> None:
    plain, bare = reader.read(PLAIN, "a"), reader.read({"token_ids": [5, 6, 7]}, "a")
    for name in ("temperature", "top_k", "top_p", "min_p", "max_tokens", "stop", "stop_token_ids", "logprobs"):
        assert getattr(plain.sampling, name) == getattr(bare.sampling, name)


def test_every_sampling_option_is_taken(reader: RequestReader) -> None:
    sampling = reader.read(
        body(
            sampling_options={
                "n": 1,
                "temperature": 0.5,
                "top_p": 0.5,
                "top_k": -1,
                "min_p": 0.25,
                "presence_penalty": 1.5,
                "frequency_penalty": -0.5,
                "repetition_penalty": 1.25,
                "seed": -3,
            },
            stop_conditions={"max_tokens": 9, "ignore_eos": True, "stop": ["a", "b"], "stop_token_ids": [3]},
            output_options={"logprobs": 2},
        ),
        "a",
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.5, 0, 0.25)
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    assert penalties == (1.5, -0.5, 1.25)
    assert sampling.seed == (-3) & (2**64 - 1)
    assert (sampling.max_tokens, sampling.ignore_eos, sampling.stop) == (9, True, ("a", "b"))
    assert sampling.stop_token_ids == (3,)
    assert sampling.logprobs == 2


def test_seeds_are_fresh_when_sampling_and_none_is_given(reader: RequestReader) -> None:
    assert reader.read(PLAIN, "a").sampling.seed != reader.read(PLAIN, "a").sampling.seed
    greedy = body(sampling_options={"temperature": 0.0})
    assert reader.read(greedy, "a").sampling == reader.read(greedy, "a").sampling


def test_stop_tokens_come_from_every_list(reader: RequestReader, eos: int) -> None:
    stops = {"stop_token_ids": [9], "stop_token_ids_visible": [8], "stop_token_ids_hidden": [eos, 7]}
    assert reader.read(body(stop_conditions=stops, eos_token_ids=[eos, 6]), "a").sampling.stop_token_ids == (6, 7, 8, 9)
    kept = reader.read(body(stop_conditions={**stops, "ignore_eos": True}, eos_token_ids=[eos, 6]), "a").sampling
    assert kept.stop_token_ids == (7, 8, 9)


def test_stop_strings_are_the_frontends_alone_with_min_tokens(reader: RequestReader) -> None:
    sampling = reader.read(body(stop_conditions={"stop": ["a"], "min_tokens": 4}), "a").sampling
    assert (sampling.stop, sampling.min_tokens) == ((), 4)


@pytest.mark.parametrize(
    ("routing", "priority"),
    [
        ({}, 0),
        ({"priority": 5, "priority_jump": 5.0}, 5),
        ({"priority": 5, "priority_jump": 3.0}, 3),
        ({"priority": -3, "priority_jump": 0.0}, -3),
        ({"priority_jump": -2.0}, -2),
    ],
)
def test_priority(reader: RequestReader, routing: dict[str, Any], priority: int) -> None:
    assert reader.read(body(routing=routing), "a").priority == priority


def test_the_tenant_is_the_salt(reader: RequestReader) -> None:
    assert reader.read(body(routing={"cache_salt": "tenant"}), "a").cache.salt == "tenant"


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"sampling_options": {"n": 2}}, "sampling_options.n"),
        ({"sampling_options": {"best_of": 3}}, "sampling_options.best_of"),
        ({"sampling_options": {"use_beam_search": True}}, "sampling_options.use_beam_search"),
        ({"sampling_options": {"length_penalty": 1.5}}, "sampling_options.length_penalty"),
        ({"sampling_options": {"logit_bias": {"5": 1}}}, "sampling_options.logit_bias"),
        ({"sampling_options": {"temperature": 3.0}}, "sampling_options.temperature"),
        ({"sampling_options": {"top_p": 0.0}}, "sampling_options.top_p"),
        ({"sampling_options": {"top_k": "5"}}, "sampling_options.top_k"),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {"a": 1}}}}, "guided_decoding.structural_tag"),
        ({"sampling_options": {"guided_decoding": {"whitespace_pattern": "x"}}}, "guided_decoding.whitespace_pattern"),
        ({"sampling_options": {"guided_decoding": {"mood": 1}}}, "guided_decoding.mood"),
        ({"sampling_options": {"guided_decoding": {"regex": "("}}}, "guided_regex"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "choice": ["a"]}}}, "guided_choice"),
        ({"stop_conditions": {"max_tokens": 0}}, "stop_conditions.max_tokens"),
        ({"stop_conditions": {"stop": [1]}}, "stop"),
        ({"stop_conditions": {"stop_token_ids": [1 << 20]}}, "stop_conditions.stop_token_ids[0]"),
        ({"stop_conditions": {"stop_at": 1}}, "stop_conditions.stop_at"),
        ({"output_options": {"prompt_logprobs": 1}}, "output_options.prompt_logprobs"),
        ({"output_options": {"logprobs": 99}}, "output_options.logprobs"),
        ({"routing": {"lora_name": "x"}}, "routing.lora_name"),
        ({"routing": {"cache_salt": 5}}, "routing.cache_salt"),
        ({"token_ids": "abc"}, "token_ids"),
        ({"token_ids": None}, "token_ids"),
        ({"multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"prefill_result": {"a": 1}}, "prefill_result"),
        ({"sampling_options": 5}, "sampling_options"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(reader: RequestReader, parts: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        reader.read(body(**parts), "a")
    assert field in str(caught.value)


@pytest.mark.parametrize(
    "guided",
    [
        {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"json": '{"type": "object"}'},
        {"regex": "[ab]+"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "x"+', "backend": "xgrammar"},
    ],
)
def test_guided_decoding_becomes_a_constraint(reader: RequestReader, llm: Any, guided: dict[str, Any]) -> None:
    constraint = reader.read(body(sampling_options={"guided_decoding": guided}), "a").constraint
    assert constraint is not None
    mask = constraint.mask()
    assert mask is not None
    assert 0 < mask.sum() < llm.info.vocab_size


def test_a_form_cannot_go_on_behind_its_end(reader: RequestReader) -> None:
    with pytest.raises(RequestError, match="ignore_eos"):
        reader.read(
            body(sampling_options={"guided_decoding": {"regex": "a"}}, stop_conditions={"ignore_eos": True}), "a"
        )


def test_the_form_holds_behind_the_reasoning_only(reader: RequestReader, llm: Any) -> None:
    """The prompt's end tells that a block is open; its budget closes it."""
    opened = [*llm.tokenizer.encode("<|im_start|>assistant\n<think>\n", allow_special=True)]
    guided = {"guided_decoding": {"choice": ["yes"]}}
    free = reader.read(body(token_ids=opened, sampling_options=guided), "a").constraint
    assert free is not None
    mask = free.mask()
    assert mask is None or mask.sum() > llm.info.vocab_size // 2
    bound = reader.read(body(token_ids=opened, stop_conditions={"max_thinking_tokens": 0}), "a").constraint
    assert bound is not None
    mask = bound.mask()
    assert mask is not None
    assert mask.sum() == 1  # the closing of the block
    assert reader.read(body(stop_conditions={"max_thinking_tokens": 0}), "a").constraint is None


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packed_tokens_are_the_same_as_listed_ones(ids: list[int]) -> None:
    packed = struct.pack(f"<{len(ids)}i", *ids)
    assert read_token_ids(packed) == read_token_ids(ids) == tuple(ids)
    assert read_token_ids(memoryview(packed)) == tuple(ids)


def test_half_a_token_is_refused() -> None:
    with pytest.raises(RequestError, match="token_ids"):
        read_token_ids(b"\x01\x00\x00")
