"""The official SDK against the server: what it sends is understood, what it gets fits its types and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from answers import call
from message_events import BASH
from sockets import LONG

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

HI = [{"role": "user", "content": "hi"}]
ASK = {"model": "tiny", "max_tokens": 200, "messages": HI}
THINK = {"type": "enabled", "budget_tokens": 1024}


def options(running: Any, **changes: Any) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{running.port}", "api_key": "none", "max_retries": 0, **changes}


@pytest.fixture
def client(running: Any) -> Any:
    with anthropic.Anthropic(**options(running)) as made:
        yield made


def fits(answer: Any) -> bool:
    """It holds against the SDK's own types."""
    return bool(type(answer).model_validate(answer.model_dump(), strict=True) == answer)


def test_an_answer(client: Any) -> None:
    answer = client.messages.create(
        **ASK,
        system="Be brief.",
        stop_sequences=["zzz"],
        metadata={"user_id": "x"},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40},  # which later SDKs have no arguments for
    )
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello there."}]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens > 0
    assert answer._request_id.startswith("req-")
    assert fits(answer)


def test_a_stream_of_the_helper_is_the_whole_answer(running: Any, client: Any) -> None:
    running.script.reply = f"I think.\n</think>\n\nLooking.\n{call('ls -la')}"
    asked = {**ASK, "thinking": THINK, "tools": [BASH]}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json", "content_block_stop", "message_stop"} <= set(seen)
    plain = [[{**block.to_dict(), "id": ""} for block in answer.content] for answer in (whole, final)]
    assert plain[0] == plain[1]
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream)


def test_an_asynchronous_stream(running: Any) -> None:
    async def run() -> list[str]:
        async with anthropic.AsyncAnthropic(**options(running)) as made, made.messages.stream(**ASK) as stream:
            return [piece async for piece in stream.text_stream]

    assert "".join(asyncio.run(run())) == "Hello there."


def test_a_round_trip_with_a_tool(running: Any, client: Any) -> None:
    running.script.reply = f"I look.\n</think>\n\nLooking.\n{call('ls')}"
    asked = {**ASK, "thinking": THINK, "tools": [BASH]}
    first = client.messages.create(**asked)
    use = first.content[-1]
    assert (use.type, use.name, use.input, first.stop_reason) == ("tool_use", "bash", {"command": "ls"}, "tool_use")
    running.script.reply = "Two files.\n</think>\n\nThere are two."
    told = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "a\nb"}]}
    messages = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [told]}]
    second = client.messages.create(**{**asked, "messages": messages})
    assert [block.type for block in second.content] == ["thinking", "text"]
    first_prompt, second_prompt = (request.prompt for request in running.script.requests)
    assert second_prompt[: len(first_prompt)] == first_prompt


def test_what_the_beta_client_sends(client: Any) -> None:
    answer = client.beta.messages.create(
        **ASK,
        betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        service_tier="auto",
    )
    assert answer.content


def test_counting(client: Any) -> None:
    count = client.messages.count_tokens(model="tiny", messages=HI, system="Be brief.", tools=[BASH])
    answer = client.messages.create(**ASK, system="Be brief.", tools=[BASH])
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert fits(count)


def test_models(client: Any) -> None:
    page = client.models.list()
    assert [model.id for model in page] == ["tiny"]
    model = client.models.retrieve("tiny")
    assert model == page.data[0]
    assert model.max_input_tokens == 4096
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")


@pytest.mark.parametrize(
    ("changes", "kind", "status"),
    [
        ({"max_tokens": 0}, "BadRequestError", 400),
        ({"model": "claude-nope"}, "NotFoundError", 404),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, "BadRequestError", 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks(client: Any, changes: dict[str, Any], kind: str, status: int, stream: bool) -> None:
    with pytest.raises(getattr(anthropic, kind)) as caught:
        client.messages.create(**{**ASK, **changes}, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.request_id.startswith("req-")
    assert caught.value.body["type"] == "error"


def test_keys(start: Any) -> None:
    running = start(api_keys=("right",))
    for given in ({"api_key": "right"}, {"api_key": None, "auth_token": "right"}):
        with anthropic.Anthropic(**options(running, **given)) as made:
            assert made.messages.create(**ASK).content
    with anthropic.Anthropic(**options(running, api_key="wrong")) as made, pytest.raises(anthropic.AuthenticationError):
        made.messages.create(**ASK)


def test_a_stream_that_breaks_raises(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, fail_in=20, decode_step_s=0.02))
    with (
        anthropic.Anthropic(**options(running)) as made,
        pytest.raises(anthropic.APIError),
        made.messages.stream(**{**ASK, "max_tokens": 1000}) as stream,
    ):
        stream.until_done()
