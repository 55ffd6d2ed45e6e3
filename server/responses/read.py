"""POST /v1/responses: from the request's bytes to an engine request.

Rules that clients may rely on, besides what `parameters.RESPONSE` says of each field:
* The same conversation gives the same prompt as on the chat surface.
* What `previous_response_id` continues is read as if the client had sent its items, and costs what they cost, less what
  the prefix cache still holds.
* Thinking is decided as for chats: by `chat_template_kwargs.enable_thinking`, else by `enable_thinking`, else
  `reasoning.effort: "none"` turns it off, else the server's default holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edgellm.decode.params import SamplingParams
from edgellm.errors import RequestError
from edgellm.server.answer import Job
from edgellm.server.body import parse_object
from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.chat import render_options
from edgellm.server.conversation import Conversation, prepare
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.server.names import check_model
from edgellm.server.responses.answer import ResponseAnswer
from edgellm.server.responses.items import read_items, to_messages
from edgellm.server.responses.parameters import RESPONSE
from edgellm.server.responses.shelf import Running, Shelf, owner_of
from edgellm.server.responses.store import Item, Stored
from edgellm.server.responses.tools import Toolbox, read_tools
from edgellm.server.retention import read_cache
from edgellm.server.sampling import read_count, read_prediction, read_sampling
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import THINKING_BUDGETS, Form, check_end, read_format, read_grammar, shape
from edgellm.server.wire import Chunk
from edgellm.text.tool_grammars import ToolGrammars

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_MAX_METADATA: Final = 16
_REPEATED: Final = ("prompt_cache_key", "safety_identifier", "user")  # without effect
_SUMMARIES: Final = ("auto", "concise", "detailed")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The part of a request that makes the prompt.

    Attributes:
        items: of this request alone.
        preamble: one was removed.
    """

    messages: list[dict[str, Any]]
    tools: Toolbox
    form: Form
    options: Mapping[str, Any]
    items: list[Item]
    owner: bytes
    preamble: bool


def read_response(body: bytes, llm: LLM, settings: ServerSettings, caller: Caller = ANONYMOUS, *, shelf: Shelf) -> Job:
    """Everything between the body's bytes and the engine. Takes time for long prompts: run it off the event loop.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model, or for a response that is to be continued and is not there.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    model = check_model(fields, settings)
    asked = _read(fields, llm, settings, caller, shelf)
    sampling = read_sampling(fields, settings, vocab_size=llm.tokenizer.vocab_size, logprobs=None)
    check_end(fields, sampling, asked.form.grammar, asked.form.param)
    limit = read_count(fields, "max_output_tokens")
    conversation = Conversation(
        asked.messages,
        asked.form,
        asked.options,
        sampling,
        read_cache(fields, settings),
        limit=limit,
        thinking_budget=read_count(fields, *THINKING_BUDGETS, low=0),
        one_call=fields.boolean("parallel_tool_calls") is False,
        prediction=read_prediction(fields, llm.tokenizer, llm.info.max_tokens),
        hints=caller.hints,
    )
    stream = fields.boolean("stream") or False
    head = _head(fields, model, sampling, limit, asked.tools, caller)
    with _naming_input(fields):
        prepared = prepare(conversation, llm, settings, prefix="resp_")
    answer = ResponseAnswer(
        {"id": prepared.requests[0].id, **head},
        prepared.said[0],
        asked.tools,
        summary=head["reasoning"]["summary"] is not None,
        keep=partial(_keep, shelf, asked.owner, asked.items),
    )
    shelf.begin(Running(asked.owner, answer, asked.items))
    return Job(
        prepared.requests,
        answer,
        stream,
        "responses",
        trigger=conversation.trigger,
        preamble=asked.preamble,
        stoppable=answer.stoppable,
    )


def count_input(
    body: bytes, llm: LLM, settings: ServerSettings, caller: Caller = ANONYMOUS, *, shelf: Shelf
) -> dict[str, Any]:
    """POST /v1/responses/input_tokens: how long the prompt of such a request is; nothing is generated.

    Raises:
        As `read_response`.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    check_model(fields, settings)
    asked = _read(fields, llm, settings, caller, shelf)
    with _naming_input(fields):
        rendered = llm.renderer.render(asked.messages, tools=asked.form.tools or None, **asked.options)
    return {"object": "response.input_tokens", "input_tokens": len(rendered.token_ids)}


def _read(fields: Fields, llm: LLM, settings: ServerSettings, caller: Caller, shelf: Shelf) -> _Asked:
    fields.refuse(RESPONSE.refused)
    if fields.string("truncation") not in (None, "disabled"):
        raise unsupported(fields.at("truncation"), "only 'disabled': conversations are never cut")
    for entry in fields.array("include") or []:
        if entry == "message.output_text.logprobs":
            raise unsupported(fields.at("include"), f"{entry}: log-probabilities are given by /v1/chat/completions")
    owner = owner_of(caller, fields.string("cache_salt"))
    tools = read_tools(fields, llm, limit=settings.max_tools)
    items = read_items(fields, partial(shelf.store.item, owner=owner), limit=settings.max_messages)
    earlier = [
        (item, f"previous_response_id[{turn}].{part}[{index}]")
        for turn, stored in enumerate(shelf.history(fields, owner))
        for part, turn_items in (("input", stored.items), ("output", stored.body["output"]))
        for index, item in enumerate(turn_items)
    ]
    instructions, read, preamble = _without_preamble(fields, items, settings)
    conversation = [*earlier, *((item, f"{fields.at('input')}[{index}]") for index, item in enumerate(read))]
    if len(conversation) > settings.max_messages:
        raise bad_value(fields.at("input"), f"makes a conversation of more than {settings.max_messages} items")
    messages = to_messages(conversation, instructions=instructions)
    if not messages:
        raise bad_value(fields.at("input"), "has no item that says anything")
    grammars = llm.tool_grammars.with_texts(tools.texts)
    options = _options(fields, settings)
    return _Asked(messages, tools, _form(fields, tools, grammars), options, items, owner, preamble)


@contextmanager
def _naming_input(fields: Fields) -> Iterator[None]:
    """Errors about the messages that the input became name the input."""
    try:
        yield
    except RequestError as error:
        if error.param is None or not error.param.startswith("messages"):
            raise
        raise RequestError(str(error), param=fields.at("input"), code=error.code) from None


def _without_preamble(
    fields: Fields, items: list[Item], settings: ServerSettings
) -> tuple[str | None, list[Item], bool]:
    """Instructions and items; whichever comes first has lost its preamble."""
    instructions = fields.string("instructions")
    if instructions:
        stripped = settings.preambles.strip(instructions)
        return stripped.value, items, stripped.removed
    first = items[0]
    if first.get("role") not in ("system", "developer"):
        return None, items, False
    stripped = settings.preambles.strip(first.get("content"))
    return None, [{**first, "content": stripped.value}, *items[1:]] if stripped.removed else items, stripped.removed


def _form(fields: Fields, tools: Toolbox, grammars: ToolGrammars) -> Form:
    text = fields.fields("text")
    words = None if text is None else read_format(text.fields("format"), flat=True)
    asked, param = read_grammar(fields, with_response_format=False)
    if words is not None:
        if asked is not None:
            raise bad_value(param, f"and {words[1]} both ask for a form of the answer; one at a time")
        asked, param = words
    choosing = Fields({**fields.data, "tool_choice": tools.choice(fields)}, fields.path)
    return shape(choosing, tools.chat, grammars, asked, param, about_words=words is not None)


def _options(fields: Fields, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of the renderer."""
    reasoning = fields.fields("reasoning")
    effort = None if reasoning is None else reasoning.string("effort")
    names = ("enable_thinking", "chat_template_kwargs")
    return render_options(
        Fields({"reasoning_effort": effort} | {name: fields.data.get(name) for name in names}, fields.path), settings
    )


def _head(
    fields: Fields, model: str, sampling: SamplingParams, limit: int | None, tools: Toolbox, caller: Caller
) -> dict[str, Any]:
    """The fields of a response that stand from its start, but for its id."""
    choice = fields.data.get("tool_choice")
    several = fields.boolean("parallel_tool_calls")
    text = fields.object("text") or {}
    store = fields.boolean("store")
    return {
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": False,
        "instructions": fields.string("instructions"),
        "max_output_tokens": limit,
        "max_tool_calls": None,
        "metadata": {**caller.metadata, **_metadata(fields)},
        "parallel_tool_calls": True if several is None else several,
        "previous_response_id": fields.string("previous_response_id"),
        **{name: value if isinstance(value := fields.data.get(name), str) else None for name in _REPEATED},
        "reasoning": _reasoning(fields),
        "service_tier": "default",
        "store": True if store is None else store,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}, **{name: value for name, value in text.items() if value is not None}},
        "tool_choice": "auto" if choice is None else choice,
        "tools": tools.declared,
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }


def _reasoning(fields: Fields) -> dict[str, Any]:
    reasoning = fields.fields("reasoning") or Fields({}, fields.at("reasoning"))
    for name in ("summary", "generate_summary"):
        if (asked := reasoning.string(name)) not in (None, "none", *_SUMMARIES):
            raise bad_value(reasoning.at(name), f"must be one of {', '.join(_SUMMARIES)}, got {asked!r:.60}")
    summary = reasoning.string("summary") or reasoning.string("generate_summary")
    return {"effort": reasoning.string("effort"), "summary": None if summary == "none" else summary}


def _metadata(fields: Fields) -> dict[str, str]:
    given = fields.object("metadata") or {}
    if len(given) > _MAX_METADATA:
        raise bad_value(fields.at("metadata"), f"must have at most {_MAX_METADATA} entries, got {len(given)}")
    for name, value in given.items():
        if not isinstance(value, str):
            raise wrong_type(f"{fields.at('metadata')}.{name[:100]}", "a string", value)
    return given


def _keep(shelf: Shelf, owner: bytes, items: list[Item], body: Chunk) -> None:
    if body["store"]:
        shelf.store.put(Stored(owner, body, items))
