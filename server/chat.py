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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgellm.decode.params import MAX_LOGPROBS
from edgellm.server.answer import Facts, Job, Kind, OpenAIAnswer
from edgellm.server.body import parse_object
from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.chat_answer import ChatChoice
from edgellm.server.choices import read_n
from edgellm.server.conversation import Conversation, prepare, template_options
from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.messages import read_messages, read_tools
from edgellm.server.names import check_model, system_fingerprint
from edgellm.server.parameters import CHAT
from edgellm.server.preamble import Preambles
from edgellm.server.retention import read_cache
from edgellm.server.sampling import read_count, read_prediction, read_sampling, read_stream
from edgellm.server.sessions.hints import read_hints
from edgellm.server.settings import ServerSettings
from edgellm.server.side_events import SideEvents
from edgellm.server.structured import check_end, read_form
from edgellm.text.chat import Rendered

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_KIND = Kind(chunk="chat.completion.chunk", whole="chat.completion")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatJob(Job):
    """`rendered`: the prompt of every choice."""

    rendered: Rendered


def read_chat(body: bytes, llm: LLM, settings: ServerSettings, caller: Caller = ANONYMOUS) -> ChatJob:
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
    fields, preamble = without_preamble(fields, settings.preambles)
    streaming = read_stream(fields)
    messages = read_messages(fields, limit=settings.max_messages)
    form = read_form(fields, read_tools(fields, limit=settings.max_tools), llm.tool_grammars)
    logprobs = _logprobs(fields)
    sampling = read_sampling(fields, settings, vocab_size=llm.tokenizer.vocab_size, logprobs=logprobs)
    check_end(fields, sampling, form.grammar, form.param)
    hints = read_hints(fields).behind(caller.hints)
    conversation = Conversation(
        messages,
        form,
        render_options(fields, settings),
        sampling,
        read_cache(fields, settings),
        limit=read_count(fields, "max_completion_tokens", "max_tokens"),
        thinking_budget=hints.max_thinking_tokens,
        one_call=fields.boolean("parallel_tool_calls") is False,
        prediction=read_prediction(fields, llm.tokenizer, llm.info.max_tokens),
        n=read_n(fields, settings.max_n),
        hints=hints,
    )
    facts = Facts()
    prepared = prepare(conversation, llm, settings, prefix="chatcmpl")
    choices = [
        ChatChoice(
            index,
            llm.tokenizer,
            said,
            logprobs=logprobs is not None,
            reasoning_field=settings.reasoning_field,
            side_events=SideEvents(index, said, tools=settings.tool_dispatch, reasoning=settings.reasoning_dispatch)
            if streaming.stream
            else None,
        )
        for index, said in enumerate(prepared.said)
    ]
    answer = OpenAIAnswer(
        _KIND,
        prepared.requests,
        choices,
        model=model,
        fingerprint=system_fingerprint(llm.info.fingerprint),
        per_prompt=conversation.n,
        streaming=streaming,
        metadata=caller.metadata,
        extra=hints.extra,
        facts=facts,
    )
    return ChatJob(
        prepared.requests,
        answer,
        streaming.stream,
        "chat",
        trigger=conversation.trigger,
        preamble=preamble,
        expected_output=hints.osl or 0,
        facts=facts,
        rendered=prepared.rendered,
    )


def without_preamble(fields: Fields, preambles: Preambles) -> tuple[Fields, bool]:
    """A chat body whose leading system message has lost its preamble, and whether it had one."""
    messages = fields.data.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return fields, False
    first = messages[0]
    if first.get("role") not in ("system", "developer"):
        return fields, False
    stripped = preambles.strip(first.get("content"))
    if not stripped.removed:
        return fields, False
    data = {**fields.data, "messages": [{**first, "content": stripped.value}, *messages[1:]]}
    return Fields(data, fields.path), True


def render_options(fields: Fields, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of the renderer: the template's own, and how the prompt ends."""
    thinking = fields.boolean("enable_thinking")
    effort = fields.string("reasoning_effort")
    if thinking is None:
        thinking = settings.enable_thinking and effort != "none"
    options = template_options(fields, settings, thinking=thinking)
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
