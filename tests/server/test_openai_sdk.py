"""The official SDK against the server: what it sends is understood, what it gets fits its types and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from answers import BASH, call
from sockets import LONG, connect

openai = pytest.importorskip("openai", reason="the openai package is not installed")

HI = [{"role": "user", "content": "hi"}]
TOO_LONG = [{"role": "user", "content": "x " * 9000}]
CALL = f"Looking.\n{call('ls -la')}"


def sync_client(running: Any, **changes: Any) -> Any:
    options = {"base_url": f"http://127.0.0.1:{running.port}/v1", "api_key": "none", "max_retries": 0, **changes}
    return openai.OpenAI(**options)


class Sdk:
    """Calls a method by its dotted name on the synchronous or on the asynchronous client; streams become lists."""

    def __init__(self, running: Any, *, asynchronous: bool, **changes: Any) -> None:
        self._options = {"base_url": f"http://127.0.0.1:{running.port}/v1", "api_key": "none", "max_retries": 0}
        self._options.update(changes)
        self._asynchronous = asynchronous

    def __call__(self, method: str, **arguments: Any) -> Any:
        if self._asynchronous:
            return asyncio.run(self._call_async(method, arguments))
        with openai.OpenAI(**self._options) as client:
            result = _find(client, method)(**arguments)
            return list(result) if arguments.get("stream") else result

    async def _call_async(self, method: str, arguments: dict[str, Any]) -> Any:
        async with openai.AsyncOpenAI(**self._options) as client:
            result = await _find(client, method)(**arguments)
            return [chunk async for chunk in result] if arguments.get("stream") else result


def _find(client: Any, method: str) -> Callable[..., Any | Awaitable[Any]]:
    for name in method.split("."):
        client = getattr(client, name)
    found: Callable[..., Any] = client
    return found


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def sdk(request: pytest.FixtureRequest, running: Any) -> Sdk:
    return Sdk(running, asynchronous=request.param)


def chat(sdk: Sdk, **arguments: Any) -> Any:
    return sdk("chat.completions.create", **{"model": "tiny", "messages": HI, **arguments})


def test_a_chat_answer(sdk: Sdk) -> None:
    answer = chat(sdk, max_completion_tokens=50, temperature=0.5, seed=1, stop=["zzz"], logit_bias={"5": -100})
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].message.refusal is None
    assert answer.choices[0].logprobs is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.system_fingerprint.startswith("fp_")
    assert answer._request_id.startswith("req-")
    assert type(answer).model_validate(answer.model_dump(), strict=True) == answer  # it fits the SDK's types


def test_a_chat_stream(sdk: Sdk) -> None:
    chunks = chat(sdk, stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello there."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools(sdk: Sdk, running: Any, stream: bool) -> None:
    running.script.reply = f"{CALL}\n{call('pwd')}"
    answer = chat(sdk, tools=[BASH], tool_choice="auto", stream=stream)
    if stream:
        deltas = [delta for chunk in answer for delta in chunk.choices[0].delta.tool_calls or []]
        arguments = ["".join(d.function.arguments or "" for d in deltas if d.index == index) for index in (0, 1)]
        names = [delta.function.name for delta in deltas if delta.id is not None]
        finish = answer[-1].choices[0].finish_reason
    else:
        calls = answer.choices[0].message.tool_calls
        arguments, names = [c.function.arguments for c in calls], [c.function.name for c in calls]
        finish = answer.choices[0].finish_reason
        assert answer.choices[0].message.content.strip() == "Looking."
    assert [json.loads(text) for text in arguments] == [{"command": "ls -la"}, {"command": "pwd"}]
    assert (names, finish) == (["bash", "bash"], "tool_calls")


def test_a_conversation_with_tool_results_goes_on(sdk: Sdk, running: Any) -> None:
    running.script.reply = CALL
    message = chat(sdk, tools=[BASH]).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a.txt"}
    running.script.reply = "There is one file."
    for sent in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        answer = chat(sdk, messages=[*HI, sent, result], tools=[BASH])
        assert answer.choices[0].message.content == "There is one file."
    prompts = {request.prompt for request in running.script.requests[1:]}
    assert len(prompts) == 1


def test_several_choices(sdk: Sdk) -> None:
    answer = chat(sdk, n=2, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert {choice.message.content for choice in answer.choices} == {"Hello there."}
    texts = {0: "", 1: ""}
    for chunk in chat(sdk, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello there.", 1: "Hello there."}


def test_logprobs(sdk: Sdk) -> None:
    answer = chat(sdk, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert "".join(entry.token for entry in content).startswith("Hello there.")
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    streamed = chat(sdk, logprobs=True, top_logprobs=3, stream=True)
    entries = [e for chunk in streamed if (p := chunk.choices[0].logprobs) is not None for e in p.content]
    assert [entry.token for entry in entries] == [entry.token for entry in content]


def test_stop_and_limits(sdk: Sdk) -> None:
    assert chat(sdk, stop="there").choices[0].message.content == "Hello "
    assert chat(sdk, stop=["x", "lo"]).choices[0].message.content == "Hel"
    assert chat(sdk, max_tokens=2).choices[0].finish_reason == "length"


def test_fields_without_effect(sdk: Sdk) -> None:
    answer = chat(
        sdk,
        user="u",
        metadata={"a": "b"},
        store=True,
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        service_tier="priority",
        safety_identifier="s",
        verbosity="low",
        reasoning_effort="none",
        modalities=["text"],
        response_format={"type": "text"},
        extra_body={"top_k": 5, "no_such_field": 1},
    )
    assert answer.choices[0].message.content == "Hello there."


def test_predicted_output(sdk: Sdk) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there, you."}]
    answer = chat(sdk, prediction={"type": "content", "content": parts})
    assert answer.choices[0].message.content == "Hello there."
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens >= 0


def test_completions(sdk: Sdk, running: Any) -> None:
    answer = sdk("completions.create", model="tiny", prompt=["One", "Two"], n=2, best_of=2, echo=True, max_tokens=50)
    assert [choice.text for choice in answer.choices] == ["OneHello there."] * 2 + ["TwoHello there."] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    chunks = sdk("completions.create", model="tiny", prompt="One", max_tokens=50, logprobs=1, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello there."
    tokens = [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens]
    assert "".join(tokens).startswith("Hello there.")
    ids = running.llm.tokenizer.encode("One", allow_special=True)
    assert sdk("completions.create", model="tiny", prompt=ids).usage.prompt_tokens == len(ids)


def test_models(sdk: Sdk) -> None:
    assert [model.id for model in sdk("models.list").data] == ["tiny"]
    model = sdk("models.retrieve", model="tiny")
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "edgellm")
    with pytest.raises(openai.NotFoundError) as caught:
        sdk("models.retrieve", model="gpt-4")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "kind", "param", "code"),
    [
        ({"temperature": 5}, "BadRequestError", "temperature", "invalid_value"),
        ({"n": 1000}, "BadRequestError", "n", "invalid_value"),
        ({"messages": []}, "BadRequestError", "messages", "invalid_value"),
        ({"audio": {"voice": "x"}}, "BadRequestError", "audio", "unsupported_value"),
        (
            {"messages": [{"role": "user", "content": "x " * 9000}]},
            "BadRequestError",
            "messages",
            "context_length_exceeded",
        ),
        ({"model": "gpt-4"}, "NotFoundError", "model", "model_not_found"),
    ],
)
def test_errors_are_of_the_sdks_classes(
    sdk: Sdk, arguments: dict[str, Any], kind: str, param: str, code: str, stream: bool
) -> None:
    with pytest.raises(getattr(openai, kind)) as caught:
        chat(sdk, **arguments, stream=stream)
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.request_id.startswith("req-")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wrong_key(start: Any, asynchronous: bool) -> None:
    running = start(api_keys=("right",))
    assert chat(Sdk(running, asynchronous=asynchronous, api_key="right")).choices
    with pytest.raises(openai.AuthenticationError) as caught:
        chat(Sdk(running, asynchronous=asynchronous, api_key="wrong"))
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_overloaded_server(start: Any, script: Any, asynchronous: bool) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), slots=1, max_queue=1, retry_after_s=3)
    with connect(running, {"stream": True}), connect(running, {"stream": True}):
        assert running.wait_for(lambda stats: stats.queued == 1)
        with pytest.raises(openai.InternalServerError) as caught:
            chat(Sdk(running, asynchronous=asynchronous))
        assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
        assert caught.value.response.headers["retry-after"] == "3"
    assert running.settled(2.0)


def test_faults_are_never_short_answers(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, fail_in=1))
    with pytest.raises(openai.InternalServerError) as caught:
        chat(Sdk(running, asynchronous=False))
    assert caught.value.code == "generation_failed"
    running.script.fail_in = 40
    running.script.decode_step_s = 0.001
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        chat(Sdk(running, asynchronous=False), stream=True)


def test_leaving_a_stream_cancels(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05))
    with sync_client(running).chat.completions.create(model="tiny", messages=HI, stream=True) as stream:
        next(iter(stream))
    assert running.settled(2.0)


def test_the_stream_helper(running: Any) -> None:
    running.script.reply = CALL
    with sync_client(running).chat.completions.stream(
        model="tiny", messages=HI, tools=[BASH], n=2, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.done", "logprobs.content.delta"} <= kinds
    for choice in final.choices:
        assert choice.message.content.strip() == "Looking."
        assert choice.message.tool_calls[0].function.name == "bash"
        assert choice.finish_reason == "tool_calls"
        assert len(choice.logprobs.content) == final.usage.completion_tokens / 2
    assert final.system_fingerprint.startswith("fp_")


def test_the_async_stream_helper(running: Any) -> None:
    async def run() -> Any:
        options = {"base_url": f"http://127.0.0.1:{running.port}/v1", "api_key": "none"}
        async with (
            openai.AsyncOpenAI(**options) as client,
            client.chat.completions.stream(model="tiny", messages=HI) as stream,
        ):
            texts = [event.delta async for event in stream if event.type == "content.delta"]
            return texts, await stream.get_final_completion()

    texts, final = asyncio.run(run())
    assert "".join(texts) == final.choices[0].message.content == "Hello there."


def test_parse_reads_the_arguments_of_strict_tools(sdk: Sdk, running: Any) -> None:
    from pydantic import BaseModel

    class Bash(BaseModel):
        command: str

    running.script.reply = f"Looking.\n{call('ls -la', 'Bash')}"
    tools = [openai.pydantic_function_tool(Bash)]
    answer = sdk("chat.completions.parse", model="tiny", messages=HI, tools=tools)
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == Bash(command="ls -la")


def test_raw_responses(running: Any) -> None:
    client = sync_client(running)
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HI, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers["x-request-id"] == raw.request_id == "mine"
    assert raw.parse().choices[0].message.content == "Hello there."
