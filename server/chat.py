"""POST /v1/chat/completions: from the request's bytes to an engine request.

Rules that clients may rely on, besides what `parameters.CHAT` says of each field:
* `max_tokens` and `max_completion_tokens` mean the same; a limit beyond the context is clamped.
* The form of the answer (`response_format`, `tool_choice`, …) is the matter of `structured`.
  `parallel_tool_calls: false` ends the answer after the first complete call.
* Thinking is decided by `chat_template_kwargs.enable_thinking`, else by `enable_thinking` at the top level, else
  `reasoning_effort: "none"` turns it off, else the server's default holds.
* `stream_options` without `stream` has no effect; a usage chunk is sent only on `include_usage`.
* With `n` choices each has its own parser; all are made of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgellm.decode.params import MAX_LOGPROBS
from edgellm.runtime.types import CacheParams, Request
from edgellm.server.answer import Job, Kind, OpenAIAnswer
from edgellm.server.body import parse_object
from edgellm.server.chat_answer import ChatChoice
from edgellm.server.choices import one_per_choice, read_n
from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.messages import read_messages, read_tools
from edgellm.server.names import check_model, new_id, system_fingerprint
from edgellm.server.parameters import CHAT
from edgellm.server.sampling import (
    clamp_to_context,
    read_count,
    read_prediction,
    read_sampling,
    read_stream,
)
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import THINKING_BUDGETS, check_end, read_form
from edgellm.text.chat import Rendered

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_RESERVED_KWARGS = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
)
_KIND = Kind(chunk="chat.completion.chunk", whole="chat.completion")


@dataclass(frozen=True, slots=True)
class ChatJob(Job):
    """`rendered`: the prompt of every choice."""

    rendered: Rendered


def read_chat(body: bytes, llm: LLM, settings: ServerSettings) -> ChatJob:
    """Everything between the body's bytes and the engine. Takes time for long prompts: run it off the event loop.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    model = check_model(fields, settings)
    fields.refuse(CHAT.refused)
    if any(kind != "text" for kind in fields.array("modalities") or ()):
        raise unsupported(fields.at("modalities"), "only text output is supported")
    prediction = read_prediction(fields, llm.tokenizer, llm.info.max_tokens)
    n = read_n(fields, settings.max_n)
    streaming = read_stream(fields)
    messages = read_messages(fields, limit=settings.max_messages)
    form = read_form(fields, read_tools(fields, limit=settings.max_tools), llm.tool_grammars)
    tools = form.tools
    budget = read_count(fields, *THINKING_BUDGETS, low=0)
    one_call = fields.boolean("parallel_tool_calls") is False
    limit = read_count(fields, "max_completion_tokens", "max_tokens")
    logprobs = _logprobs(fields)
    salt = fields.string("cache_salt") or ""
    sampling = read_sampling(fields, settings, vocab_size=llm.tokenizer.vocab_size, logprobs=logprobs)
    check_end(fields, sampling, form.grammar, form.param)
    rendered = llm.renderer.render(messages, tools=tools or None, **render_options(fields, settings))
    limit = clamp_to_context(len(rendered.token_ids), limit or settings.sampling.max_tokens, llm.info.max_tokens)
    request = Request(
        id=new_id("chatcmpl"),
        prompt=rendered.token_ids,
        sampling=replace(sampling, max_tokens=limit),
        cache=CacheParams(read=settings.prefix_cache, write=settings.prefix_cache, salt=salt),
        stable_lengths=rendered.stable_lengths,
        deadline_s=settings.deadline_s,
        prediction=prediction,
    )
    requests = tuple(
        replace(
            each,
            constraint=llm.constraints.make(
                form.grammar, param=form.param, thinking_open=rendered.thinking_open, max_thinking_tokens=budget
            ),
        )
        for each in one_per_choice(request, n)
    )
    choices = [
        ChatChoice(
            index,
            llm.tokenizer,
            llm.parser(tools, thinking_open=rendered.thinking_open, id_seed=each.id),
            thinking_open=rendered.thinking_open,
            one_call=one_call,
            logprobs=logprobs is not None,
            reasoning_field=settings.reasoning_field,
        )
        for index, each in enumerate(requests)
    ]
    answer = OpenAIAnswer(
        _KIND,
        requests,
        choices,
        model=model,
        fingerprint=system_fingerprint(llm.info.fingerprint),
        per_prompt=n,
        streaming=streaming,
    )
    return ChatJob(requests, answer, streaming.stream, rendered)


def render_options(fields: Fields, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of the renderer: the template's own, and how the prompt ends."""
    thinking = fields.boolean("enable_thinking")
    effort = fields.string("reasoning_effort")
    if thinking is None:
        thinking = settings.enable_thinking and effort != "none"
    options: dict[str, Any] = {"enable_thinking": thinking}
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


def _logprobs(fields: Fields) -> int | None:
    """Alternatives to report per token, or None for no log-probabilities."""
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wanted:
        raise bad_value(fields.at("top_logprobs"), "needs logprobs: true")
    return (top or 0) if wanted else None
