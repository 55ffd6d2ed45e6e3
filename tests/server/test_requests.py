"""Fields of chat and completion requests: meaning, ranges, and a named error for everything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from bare_llm import bare_llm
from hypothesis import given
from hypothesis import strategies as st

from edgellm.decode.params import SamplingParams
from edgellm.errors import RequestError
from edgellm.server.answer import Job
from edgellm.server.chat import ChatJob, read_chat
from edgellm.server.completions import read_completion
from edgellm.server.errors import ApiError
from edgellm.server.settings import ServerSettings

SETTINGS = ServerSettings(model="m", aliases=("other",))
CONTEXT = 2048
HI = [{"role": "user", "content": "hi"}]
STATS = "stream_options.continuous_usage_stats"
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def llm(tokenizer: Any) -> Any:
    return bare_llm(*tokenizer, context=CONTEXT)


def chat(llm: Any, settings: ServerSettings = SETTINGS, **body: Any) -> ChatJob:
    return read_chat(json.dumps({"messages": HI, **body}).encode(), llm, settings)


def completion(llm: Any, **body: Any) -> Job:
    return read_completion(json.dumps(body).encode(), llm, SETTINGS)


def refused(llm: Any, **body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(llm, **body)
    return caught.value


def test_defaults(llm: Any) -> None:
    job = chat(llm)
    sampling = job.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)
    assert sampling.max_tokens == CONTEXT - len(job.requests[0].prompt)
    assert not job.stream
    assert chat(llm).requests[0].sampling.seed != sampling.seed  # sampled requests without a seed differ


def test_every_sampling_field_takes_effect(llm: Any) -> None:
    job = chat(
        llm,
        model="other",
        stream=True,
        max_completion_tokens=64,
        temperature=0,
        seed=42,
        top_k=20,
        top_p=0.95,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": -100, "7": 1.5},
        stop=["a", "b"],
        stop_token_ids=[3],
        min_tokens=2,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=2,
        cache_salt="tenant",
    )
    expected = SamplingParams(
        temperature=0.0,
        top_k=20,
        top_p=0.95,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={5: -100.0, 7: 1.5},
        seed=42,
        max_tokens=64,
        min_tokens=2,
        stop=("a", "b"),
        stop_token_ids=(3,),
        ignore_eos=True,
        logprobs=2,
    )
    assert job.requests[0].sampling == expected
    assert job.requests[0].cache.salt == "tenant"
    assert job.stream


def test_server_defaults_fill_what_is_left_out(llm: Any) -> None:
    settings = ServerSettings(
        model="m", sampling=SamplingParams(temperature=0.6, top_k=20, max_tokens=9), prefix_cache=False, deadline_s=3.0
    )
    request = chat(llm, settings, top_k=-1).requests[0]
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.max_tokens) == (0.6, 0, 9)
    assert (request.cache.read, request.cache.write, request.deadline_s) == (False, False, 3.0)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 1e12, "5", 1.5, True, [], 2**70]),
        ("max_completion_tokens", [0, -1, 1e12, "5", 1.5, True]),
        ("temperature", [-1, 3, "1", True, 1e308, [1]]),
        ("top_p", [0, 2, -0.1, "x"]),
        ("top_k", [-5, 1.5, "1", 10**10]),
        ("min_p", [-0.1, 1.1]),
        ("n", [0, 9, 1.5, "1", 10**9]),
        ("seed", [2**70, -(2**70), 1.5, "1"]),
        ("stop", ["", 5, {}, ["a"] * 17, "x" * 2000]),
        ("presence_penalty", [-3, 3, "0"]),
        ("frequency_penalty", [-3, 3]),
        ("repetition_penalty", [0, 1e-3, 2.3e-308, -1, 11]),
        ("logit_bias", [[], 5]),
        ("stream", ["true", 1, 0]),
        ("stream_options", [True, []]),
        ("tools", [{}, "x"]),
        ("tool_choice", ["required", "any", 5]),
        ("parallel_tool_calls", ["false", 0]),
        ("logprobs", [1, "true"]),
        ("top_logprobs", [21, -1, 1]),
        ("response_format", ["text", []]),
        ("modalities", [["audio"], "text"]),
        ("model", [5, {}]),
        ("cache_salt", [5]),
        ("enable_thinking", ["yes"]),
        ("chat_template_kwargs", [[], "x"]),
        ("messages", [[], {}, "hi", 5]),
        ("functions", [[{}]]),
        ("chat_template", ["{{ x }}"]),
        ("guided_json", [5, "{", {"type": "thing"}, {"$ref": "#"}]),
        ("guided_regex", ["", 5, "("]),
        ("guided_choice", [[], "yes"]),
        ("guided_grammar", ["", "nothing"]),
        ("max_thinking_tokens", [-1, "5", 1.5]),
        ("echo", [True]),
        ("moderation", [{}]),
        ("web_search_options", [{}]),
        ("prediction", ["x", []]),
        ("reasoning_effort", [5]),
        ("skip_special_tokens", [False, 1]),
        ("min_tokens", [-1, "1"]),
        ("ignore_eos", [1]),
    ],
)
def test_wrong_values_name_the_field(llm: Any, field: str, values: list[Any]) -> None:
    for value in values:
        error = refused(llm, **{field: value})
        assert error.param == field, value
        assert str(error).startswith(field), value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias.99999999"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"²": 1}}, "logit_bias.²"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": 1}}, STATS),
        ({"prediction": {}}, "prediction.type"),
        ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content[0].type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": {"type": "function", "function": {"name": "ls"}}}, "tool_choice.function.name"),
        ({"max_thinking_tokens": 5, "thinking_budget": 6}, "max_thinking_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": HI}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"self": None}}, "chat_template_kwargs.self"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0].function"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": {}}]}, "messages[1].tool_calls"),
        ({"messages": [*HI, {"role": "assistant", "function_call": {"name": "x"}}]}, "messages[1].function_call"),
        ({"messages": [*HI, {"role": "assistant", "reasoning_content": {}}]}, "messages[1].reasoning_content"),
        ({"messages": [*HI, {"role": "assistant", "reasoning": ["a", 5]}]}, "messages[1].reasoning[1]"),
    ],
)
def test_nested_errors_name_the_path(llm: Any, body: dict[str, Any], param: str) -> None:
    assert refused(llm, **body).param == param


def test_choices_have_their_own_seeds_and_ids(llm: Any) -> None:
    requests = chat(llm, n=3, seed=2**64 - 1).requests
    assert [request.sampling.seed for request in requests] == [2**64 - 1, 0, 1]
    assert len({request.id for request in requests}) == 3
    assert requests[0] == replace(chat(llm, seed=2**64 - 1).requests[0], id=requests[0].id)
    assert {request.prompt for request in requests} == {requests[0].prompt}


def test_choices_of_several_prompts(llm: Any) -> None:
    requests = completion(llm, prompt=["a", "b c", "a"], n=2, best_of=2, seed=7).requests
    assert [request.sampling.seed for request in requests] == [7, 8] * 3
    assert len({request.id for request in requests}) == 6
    prompts = [request.prompt for request in requests]
    assert prompts[0] == prompts[1] == prompts[4] == prompts[5]
    assert prompts[2] == prompts[3] != prompts[0]
    unseeded = completion(llm, prompt=["a", "a"]).requests
    assert unseeded[0].sampling.seed != unseeded[1].sampling.seed
    greedy = completion(llm, prompt=["a", "a"], temperature=0).requests
    assert greedy[0].sampling == greedy[1].sampling


@pytest.mark.parametrize(("name", "small"), [("messages", {"max_messages": 1}), ("tools", {"max_tools": 1})])
def test_lists_are_bounded_by_settings(llm: Any, name: str, small: dict[str, int]) -> None:
    body = {name: HI * 2 if name == "messages" else [TOOL, TOOL]}
    chat(llm, **body)
    with pytest.raises(RequestError, match="at most 1 entries") as caught:
        chat(llm, ServerSettings(model="m", **small), **body)
    assert caught.value.param == name


def test_stops_and_choices_are_bounded_by_settings(llm: Any) -> None:
    for name, value, small in (("stop", ["a", "b"], {"max_stops": 1}), ("n", 2, {"max_n": 1})):
        with pytest.raises(RequestError) as caught:
            chat(llm, ServerSettings(model="m", **small), **{name: value})
        assert caught.value.param == name
    with pytest.raises(RequestError, match="deeper than 3 levels"):
        chat(llm, ServerSettings(model="m", max_depth=3), x=[[[]]])


def test_null_means_not_given(llm: Any) -> None:
    names = "max_tokens temperature top_p top_k seed stop n logit_bias logprobs tools tool_choice response_format"
    names += " stream stream_options parallel_tool_calls chat_template_kwargs user functions model"
    plain, nulled = chat(llm, seed=1), chat(llm, **{**dict.fromkeys(names.split()), "seed": 1})
    assert nulled.requests[0].sampling == plain.requests[0].sampling
    assert nulled.requests[0].prompt == plain.requests[0].prompt


def test_ignored_and_unknown_fields_change_nothing(llm: Any) -> None:
    extra = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "flex", "no_such_field": {"x": [1]}}
    assert chat(llm, seed=1, **extra).requests[0].prompt == chat(llm, seed=1).requests[0].prompt
    assert chat(llm, seed=1, **extra).requests[0].sampling == chat(llm, seed=1).requests[0].sampling


def test_thinking_is_the_servers_default_unless_asked(llm: Any) -> None:
    on = ServerSettings(model="m", enable_thinking=True)
    off, forced = (
        chat(llm).requests[0].prompt,
        chat(llm, chat_template_kwargs={"enable_thinking": True}).requests[0].prompt,
    )
    assert off != forced
    assert chat(llm, on).requests[0].prompt == forced
    assert chat(llm, enable_thinking=True).requests[0].prompt == forced
    assert (
        chat(llm, on, chat_template_kwargs={"enable_thinking": False, "preserve_thinking": True}).requests[0].prompt
        == off
    )


def test_effort_none_turns_thinking_off(llm: Any) -> None:
    on = ServerSettings(model="m", enable_thinking=True)
    thinking, off = chat(llm, on).requests[0].prompt, chat(llm).requests[0].prompt
    assert chat(llm, on, reasoning_effort="none").requests[0].prompt == off
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max", "some later one", None):
        assert chat(llm, on, reasoning_effort=effort).requests[0].prompt == thinking
        assert chat(llm, reasoning_effort=effort).requests[0].prompt == off
    assert chat(llm, on, reasoning_effort="none", enable_thinking=True).requests[0].prompt == thinking


def test_a_refusal_in_the_history_is_its_text(llm: Any) -> None:
    refusal, content = ({"role": "assistant", key: "No."} for key in ("refusal", "content"))
    assert chat(llm, messages=[*HI, refusal, *HI]).requests[0].prompt == (
        chat(llm, messages=[*HI, content, *HI]).requests[0].prompt
    )


def test_tool_choice_none_hides_the_tools(llm: Any) -> None:
    assert chat(llm, tools=[TOOL], tool_choice="none").requests[0].prompt == chat(llm).requests[0].prompt
    assert chat(llm, tools=[], tool_choice="auto").requests[0].prompt == chat(llm).requests[0].prompt
    assert chat(llm, tools=[TOOL], tool_choice="auto").requests[0].prompt == chat(llm, tools=[TOOL]).requests[0].prompt
    assert chat(llm, tools=[TOOL]).requests[0].prompt != chat(llm).requests[0].prompt


def test_odd_tool_schemas_are_tolerated(llm: Any) -> None:
    properties = {"a": {"type": "string", "description": None}}
    parameters = {"type": "object", "properties": properties, "required": None}
    for name in ("math.hypot", "a-b", "get_x.v2", "mcp__server__tool" * 5):
        chat(llm, tools=[{"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}])
    chat(llm, tools=[{"type": "function", "function": {"name": "bare"}}])


def test_agent_histories_are_accepted(llm: Any) -> None:
    call = {
        "id": "functions.bash:0",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
    }
    second = {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pwd"}'}}
    recorded = {"role": "assistant", "tool_calls": [call], "reasoning_content": "R"}
    alias = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "R", "audio": None}
    result = {"role": "tool", "tool_call_id": "functions.bash:0", "content": "a"}
    tools = [TOOL]
    prompt = chat(llm, messages=[*HI, recorded, result], tools=tools).requests[0].prompt
    assert chat(llm, messages=[*HI, alias, result], tools=tools).requests[0].prompt == prompt
    segments = {**recorded, "reasoning_content": ["", "R"]}
    assert chat(llm, messages=[*HI, segments, result], tools=tools).requests[0].prompt == prompt
    parts = {**result, "content": [{"type": "text", "text": "a"}]}
    assert chat(llm, messages=[*HI, recorded, parts], tools=tools).requests[0].prompt == prompt
    two = {"role": "assistant", "content": "", "tool_calls": [call, second]}
    for tail in ([result], [{**result, "tool_call_id": "unknown"}], [], [{"role": "tool", "content": None}]):
        chat(llm, messages=[*HI, two, *tail, {"role": "user", "content": "go on"}], tools=tools)
    chat(llm, messages=[{"role": "developer", "content": "be brief"}, *HI, {"role": "assistant"}, *HI])


def test_the_harness_and_the_server_render_alike(llm: Any) -> None:
    """The messages as sent and the messages as checked give the same prompt."""
    call = {"id": "a:0", "type": "function", "function": {"name": "ls", "arguments": '{"b": 1, "a": [2]}'}}
    messages = [
        {"role": "system", "content": "S"},
        *HI,
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "R"},
        {"role": "tool", "content": "out", "tool_call_id": "a:0"},
    ]
    rendered = llm.renderer.render(messages, tools=[TOOL], enable_thinking=False)
    request = chat(llm, messages=messages, tools=[TOOL]).requests[0]
    assert request.prompt == rendered.token_ids
    assert request.stable_lengths == rendered.stable_lengths


def test_unknown_model_is_404(llm: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(llm, model="gpt-4")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_context_overflow_and_clamp(llm: Any) -> None:
    error = refused(llm, messages=[{"role": "user", "content": "word " * CONTEXT}])
    assert error.code == "context_length_exceeded"
    assert f"tokens > {CONTEXT - 1} maximum" in str(error)
    assert str(error).startswith("prompt is too long: ")
    for limit in (4096, 10**12):
        request = chat(llm, max_tokens=limit).requests[0]
        assert len(request.prompt) + request.sampling.max_tokens == CONTEXT
    full = completion(llm, prompt=[5] * (CONTEXT - 1), max_tokens=50).requests[0]
    assert full.sampling.max_tokens == 1
    with pytest.raises(RequestError, match="too long") as caught:
        completion(llm, prompt=[5] * CONTEXT)
    assert caught.value.param == "prompt"


def test_completion_prompts(llm: Any) -> None:
    ids = completion(llm, prompt="a<|im_end|>b").requests[0].prompt
    assert llm.tokenizer.added["<|im_end|>"] in ids
    for same in (list(ids), ["a<|im_end|>b"], [list(ids)]):
        assert completion(llm, prompt=same).requests[0].prompt == ids
    request = completion(llm, prompt="x").requests[0]
    assert (request.sampling.max_tokens, request.stable_lengths) == (16, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt"),
        ({"prompt": ["a", [5] * CONTEXT]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, 10**9]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, 1.0]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [["a"]]}, "prompt[0][0]"),
        ({"prompt": "a", "echo": True, "logprobs": 0}, "echo"),
        ({"prompt": "a", "prediction": {"type": "content"}}, "prediction.content"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "best_of": 3, "n": 2}, "best_of"),
        ({"prompt": "a", "best_of": 0}, "best_of"),
        ({"prompt": "a", "n": 9}, "n"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_completion_errors_name_the_field(llm: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(llm, **body)
    assert caught.value.param == param


_NAMES = [
    *("model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop", "n", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"),
    *("response_format", "chat_template_kwargs", "enable_thinking", "modalities", "functions", "stop_token_ids"),
]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "function", "name", "role", "content", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(body=st.dictionaries(st.sampled_from(_NAMES), _values, max_size=4))
def test_any_json_is_either_a_request_or_a_named_error(llm: Any, body: dict[str, Any]) -> None:
    caught: RequestError | ApiError | None = None
    try:
        chat(llm, **body)
    except (RequestError, ApiError) as error:
        caught = error
    assert caught is None or caught.param is not None


def test_a_server_may_keep_earlier_reasoning(llm: Any) -> None:
    """Unless the request says otherwise."""
    thought = {"role": "assistant", "content": "done", "reasoning_content": "a plan"}

    def prompt(settings: ServerSettings, **body: Any) -> str:
        data = json.dumps({"messages": [*HI, thought, *HI], **body}).encode()
        return str(llm.tokenizer.decode(read_chat(data, llm, settings).requests[0].prompt))

    keeps = ServerSettings(model="m", preserve_thinking=True)
    assert "a plan" in prompt(keeps)
    assert "a plan" not in prompt(SETTINGS)
    assert "a plan" not in prompt(keeps, chat_template_kwargs={"preserve_thinking": False})
