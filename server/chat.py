"""POST /v1/chat/completions: from the request's bytes to an engine request.

Rules that clients may rely on:
* `max_tokens` and `max_completion_tokens` mean the same; a limit beyond the context is clamped.
* `tool_choice` is "auto" or "none"; forcing a call is refused. `parallel_tool_calls: false` ends the answer after the
  first complete call. A schema's `strict` has no effect: argument types follow the schema by parsing.
* `enable_thinking` may be given in `chat_template_kwargs` or at the top level; otherwise the server's default holds.
* `stream_options` without `stream` has no effect; a usage chunk is sent only on `include_usage`.
* Fields in `IGNORED_FIELDS` and unknown fields have no effect. Known fields that would change the answer and are not
  implemented are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgellm.decode.params import MAX_LOGPROBS
from edgellm.runtime.types import CacheParams, Request
from edgellm.server.body import parse_object
from edgellm.server.chat_answer import ChatAnswer
from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.messages import read_messages, read_tools, tools_in_use
from edgellm.server.names import check_model, new_id
from edgellm.server.sampling import (
    UNSUPPORTED_CONSTRAINTS,
    clamp_to_context,
    one_choice,
    read_max_tokens,
    read_sampling,
    read_stream,
)
from edgellm.server.settings import ServerSettings
from edgellm.text.parser import OutputParser

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_RESERVED_KWARGS = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
)
_REFUSED = {
    **UNSUPPORTED_CONSTRAINTS,
    "functions": "retired; use tools",
    "function_call": "retired; use tool_choice",
    "audio": "audio output is not supported",
    "web_search_options": "web search is not supported",
    "chat_template": "the checkpoint's own template is used; see chat_template_kwargs",
    "echo": "not supported for chat",
    "best_of": "not supported for chat",
    "prompt_logprobs": "not supported",
}


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A request that was read, rendered and found to fit: what remains is to run it."""

    request: Request
    answer: ChatAnswer
    stream: bool


def read_chat(body: bytes, llm: LLM, settings: ServerSettings) -> ChatJob:
    """Everything between the body's bytes and the engine. Takes time for long prompts: run it off the event loop.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    fields = Fields(parse_object(body))
    model = check_model(fields, settings)
    fields.refuse(_REFUSED)
    _text_only(fields)
    one_choice(fields, "n")
    stream, include_usage = read_stream(fields)
    messages = read_messages(fields)
    tools = tools_in_use(fields, read_tools(fields))
    one_call = fields.boolean("parallel_tool_calls") is False
    limit = read_max_tokens(fields, "max_completion_tokens", "max_tokens")
    logprobs = _logprobs(fields)
    salt = fields.string("cache_salt") or ""
    sampling = read_sampling(fields, settings.sampling, vocab_size=llm.tokenizer.vocab_size, logprobs=logprobs)
    rendered = llm.renderer.render(messages, tools=tools or None, **_render_options(fields, settings))
    limit = clamp_to_context(len(rendered.token_ids), limit or settings.sampling.max_tokens, llm.info.max_tokens)
    request = Request(
        id=new_id("chatcmpl"),
        prompt=rendered.token_ids,
        sampling=replace(sampling, max_tokens=limit),
        cache=CacheParams(read=settings.prefix_cache, write=settings.prefix_cache, salt=salt),
        stable_lengths=rendered.stable_lengths,
        deadline_s=settings.deadline_s,
    )
    answer = ChatAnswer(
        request.id,
        model,
        llm.tokenizer,
        OutputParser(tools, thinking_open=rendered.thinking_open, parse_tools=bool(tools), id_seed=request.id),
        thinking_open=rendered.thinking_open,
        one_call=one_call,
        logprobs=logprobs is not None,
        include_usage=include_usage,
    )
    return ChatJob(request, answer, stream)


def _render_options(fields: Fields, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of the renderer: the template's own, and how the prompt ends."""
    thinking = fields.boolean("enable_thinking")
    options: dict[str, Any] = {"enable_thinking": settings.enable_thinking if thinking is None else thinking}
    given = fields.fields("chat_template_kwargs")
    if given is not None:
        for name in sorted(_RESERVED_KWARGS & given.data.keys()):
            raise bad_value(given.at(name), "is set by the server")
        for name in ("enable_thinking", "preserve_thinking"):
            given.boolean(name)
        options.update((name, value) for name, value in given.data.items() if value is not None)
    if fields.boolean("continue_final_message"):
        options["continue_final_message"] = True
    elif fields.boolean("add_generation_prompt") is False:
        options["add_generation_prompt"] = False
    return options


def _text_only(fields: Fields) -> None:
    """Refuse output forms other than free text."""
    response_format = fields.fields("response_format")
    if response_format is not None:
        kind = response_format.string("type")
        if kind in ("json_object", "json_schema", "structural_tag"):
            raise unsupported(response_format.at("type"), f"{kind} is not supported yet; only 'text' is")
        if kind not in (None, "text"):
            raise bad_value(response_format.at("type"), f"must be 'text', got {kind[:40]!r}")
    if any(kind != "text" for kind in fields.array("modalities") or ()):
        raise unsupported(fields.at("modalities"), "only text output is supported")


def _logprobs(fields: Fields) -> int | None:
    """Alternatives to report per token, or None for no log-probabilities."""
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wanted:
        raise bad_value(fields.at("top_logprobs"), "needs logprobs: true")
    return (top or 0) if wanted else None
