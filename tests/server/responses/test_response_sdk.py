"""The official SDK against the Responses routes."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from constrained import passes
from parsed import call
from pydantic import BaseModel
from sockets import LONG

openai = pytest.importorskip("openai", reason="the openai package is not installed")

LS = {
    "type": "function",
    "name": "ls",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "strict": True,
}


def client_of(running: Any, **changes: Any) -> Any:
    options = {"base_url": f"http://127.0.0.1:{running.port}/v1", "api_key": "none", "max_retries": 0, **changes}
    return openai.OpenAI(**options)


@pytest.fixture
def client(running: Any) -> Any:
    with client_of(running) as made:
        yield made


def check(response: Any) -> Any:
    """It fits the SDK's types to the letter."""
    told = response.to_dict(mode="json")
    assert type(response).model_validate(told, strict=True).to_dict(mode="json") == told
    return response


def test_a_response(client: Any) -> None:
    response = check(client.responses.create(model="tiny", input="hi", instructions="Be brief."))
    assert response.output_text == "Hello there."
    assert (response.status, response.object, response.model) == ("completed", "response", "tiny")
    assert response.id.startswith("resp_")
    assert response.instructions == "Be brief."
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.input_tokens_details.cached_tokens == 0
    assert response._request_id.startswith("req-")


def test_fields_are_given_back(client: Any) -> None:
    given = {
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 50,
        "parallel_tool_calls": False,
    }
    response = check(
        client.responses.create(
            model="tiny",
            input="hi",
            service_tier="auto",
            text={"verbosity": "low"},
            truncation="disabled",
            include=["reasoning.encrypted_content"],
            store=False,
            **given,
        )
    )
    assert {name: getattr(response, name) for name in given} == given
    assert response.text.verbosity == "low"
    assert response.text.format.type == "text"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_streams(client: Any) -> None:
    events = list(client.responses.create(model="tiny", input="hi", stream=True))
    for event in events:
        check(event)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there."
    assert events[-1].response.output_text == "Hello there."
    with client.responses.stream(model="tiny", input="hi") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "Hello there."
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_the_async_client(running: Any) -> None:
    async def run() -> tuple[str, str]:
        options = {"base_url": f"http://127.0.0.1:{running.port}/v1", "api_key": "none"}
        async with openai.AsyncOpenAI(**options) as client:
            whole = await client.responses.create(model="tiny", input="hi")
            async with client.responses.stream(model="tiny", input="hi") as stream:
                return whole.output_text, (await stream.get_final_response()).output_text

    assert asyncio.run(run()) == ("Hello there.", "Hello there.")


def test_a_tool_loop_by_items(client: Any, running: Any) -> None:
    running.script.reply = f"I look.\n{call('ls', path='.')}"
    items: list[Any] = [{"role": "user", "content": "What is here?"}]
    first = check(client.responses.create(model="tiny", input=items, tools=[LS]))
    message, made = first.output
    assert message.content[0].text == "I look."
    assert json.loads(made.arguments) == {"path": "."}
    items += first.output
    items.append({"type": "function_call_output", "call_id": made.call_id, "output": "a.txt"})
    running.script.reply = "There is a.txt."
    second = client.responses.create(model="tiny", input=items, tools=[LS])
    assert second.output_text == "There is a.txt."
    assert second.usage.input_tokens_details.cached_tokens > 0
    # The same by the id of the first response: the same prompt.
    result = items[-1:]
    third = client.responses.create(model="tiny", input=result, previous_response_id=first.id, tools=[LS])
    assert third.previous_response_id == first.id
    prompts = {request.prompt for request in running.script.requests[1:]}
    assert len(prompts) == 1


def test_a_conversation_by_id(client: Any, running: Any) -> None:
    first = client.responses.create(model="tiny", input="One", instructions="SYSTEM-ONE")
    running.script.reply = "Second."
    second = client.responses.create(model="tiny", input="Two", previous_response_id=first.id)
    third = client.responses.create(model="tiny", input="Three", previous_response_id=second.id, stream=True)
    assert list(third)[-1].response.output_text == "Second."
    prompt = running.llm.tokenizer.decode(running.script.requests[-1].prompt)
    places = [prompt.index(text) for text in ("One", "Hello there.", "Two", "Second.", "Three")]
    assert places == sorted(places)
    assert "SYSTEM-ONE" not in prompt
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="tiny", input="x", previous_response_id="resp_gone")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_retrieve_items_and_delete(client: Any) -> None:
    made = client.responses.create(model="tiny", input=[{"role": "user", "content": "hi"}] * 3)
    assert client.responses.retrieve(made.id) == made
    listed = list(client.responses.input_items.list(made.id, limit=2, order="asc"))
    assert len(listed) == 3  # by two pages
    assert len({item.id for item in listed}) == 3
    assert next(iter(client.responses.input_items.list(made.id))).id == listed[-1].id
    client.responses.delete(made.id)
    for look in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            look(made.id)
        assert caught.value.code == "response_not_found"


def test_item_references(client: Any, running: Any) -> None:
    made = client.responses.create(model="tiny", input="hi")
    reference = {"type": "item_reference", "id": made.output[0].id}
    client.responses.create(model="tiny", input=["x", reference, {"role": "user", "content": "more"}][1:])
    assert "Hello there." in running.llm.tokenizer.decode(running.script.requests[-1].prompt)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input=[{"type": "item_reference", "id": "msg_gone"}])
    assert caught.value.param == "input[0].id"


def test_tokens_of_an_input(client: Any, running: Any) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": "hi", "instructions": "Be brief.", "tools": [LS]}
    counted = check(client.responses.input_tokens.count(**body))
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == client.responses.create(**body).usage.input_tokens
    assert len(running.script.requests) == 1


def test_parse(client: Any, running: Any) -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    running.script.reply = '{"city": "Oslo", "degrees": -3}'
    response = client.responses.parse(model="tiny", input="hi", text_format=Weather)
    assert response.output_parsed == Weather(city="Oslo", degrees=-3)


def test_cancel_of_a_running_response(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02))
    with client_of(running) as client, client_of(running) as other:
        kinds: list[Any] = []
        begun = threading.Event()

        def read() -> None:
            for event in client.responses.create(model="tiny", input="hi", stream=True):
                kinds.append(event)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(10)
        name = kinds[0].response.id
        assert other.responses.retrieve(name).status == "in_progress"
        assert other.responses.cancel(name).status == "cancelled"
        reader.join(10)
        assert not reader.is_alive()
        assert kinds[-1].type == "response.incomplete"
        assert kinds[-1].response.status == "cancelled"
        assert kinds[-1].response.output[0].status == "incomplete"
        assert other.responses.retrieve(name) == kinds[-1].response
        assert other.responses.cancel(name).status == "cancelled"  # once more changes nothing
    assert running.settled()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "kind", "param", "code"),
    [
        ({"temperature": 5}, "BadRequestError", "temperature", "invalid_value"),
        ({"max_output_tokens": 0}, "BadRequestError", "max_output_tokens", "invalid_value"),
        ({"background": True}, "BadRequestError", "background", "unsupported_value"),
        ({"conversation": "conv_1"}, "BadRequestError", "conversation", "unsupported_value"),
        ({"prompt": {"id": "p"}}, "BadRequestError", "prompt", "unsupported_value"),
        ({"max_tool_calls": 3}, "BadRequestError", "max_tool_calls", "unsupported_value"),
        ({"truncation": "auto"}, "BadRequestError", "truncation", "unsupported_value"),
        ({"top_logprobs": 3}, "BadRequestError", "top_logprobs", "unsupported_value"),
        ({"include": ["message.output_text.logprobs"]}, "BadRequestError", "include", "unsupported_value"),
        ({"input": "x " * 9000}, "BadRequestError", "input", "context_length_exceeded"),
        ({"input": []}, "BadRequestError", "input", "invalid_value"),
        ({"metadata": {"a": 1}}, "BadRequestError", "metadata.a", "invalid_type"),
        ({"text": {"format": {"type": "xml"}}}, "BadRequestError", "text.format.type", "unsupported_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "BadRequestError", "text.format.schema", "invalid_type"),
        ({"model": "gpt-4"}, "NotFoundError", "model", "model_not_found"),
    ],
)  # fmt: skip
def test_errors_are_of_the_sdks_classes(
    client: Any, arguments: dict[str, Any], kind: str, param: str, code: str, stream: bool
) -> None:
    with pytest.raises(getattr(openai, kind)) as caught:
        client.responses.create(**{"model": "tiny", "input": "hi", **arguments}, stream=stream)
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")


def test_json_in_the_answer(client: Any, running: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    running.script.reply = '{"a": 5}'
    assert client.responses.create(model="tiny", input="hi", text={"format": form}).output_text == '{"a": 5}'
    constraint = running.script.requests[-1].constraint
    assert not passes(constraint, running.llm.tokenizer, '{"b": 5}')
