"""POST /v1/messages and /v1/messages/count_tokens: from the request's bytes to an engine request, or to a number.

Rules that clients may rely on, besides what `parameters.MESSAGES` and `turns` say:
* A last message of the assistant's with text and without calls is continued: the answer is what follows it.
* Thinking is decided by `chat_template_kwargs.enable_thinking`, else by `thinking`, else `output_config.effort: "none"`
  turns it off, else the server's default holds.
* `tool_choice`, strict tools and the schema of `output_config` hold as their counterparts of a chat request do.
* Fields and `anthropic-beta` headers that are unknown have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.server.answer import Job
from edgellm.server.anthropic.answer import MessagesAnswer
from edgellm.server.anthropic.cache_marks import keep_marked, read_marks
from edgellm.server.anthropic.parameters import MESSAGES
from edgellm.server.anthropic.tools import read_choice, read_tools
from edgellm.server.anthropic.turns import Turn, read_system, read_turns
from edgellm.server.body import parse_object
from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.conversation import Conversation, prepare, template_options
from edgellm.server.fields import Fields, bad_value
from edgellm.server.names import check_model
from edgellm.server.retention import read_cache
from edgellm.server.sampling import read_count, read_sampling
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import Form, read_format, shape
from edgellm.text.grammars import Grammar

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_SAMPLING: Final = ("temperature", "top_p", "top_k", "seed")


class _Sampling(Fields):
    """The sampling fields under the chat form's names; errors call them as the request does."""

    def at(self, name: str) -> str:
        return super().at("stop_sequences" if name == "stop" else name)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What both routes read of a body.

    Attributes:
        model: the name to answer under.
        options: of the renderer.
        budget: most tokens of reasoning.
    """

    fields: Fields
    model: str
    turns: list[Turn]
    form: Form
    one_call: bool
    options: Mapping[str, Any]
    budget: int | None
    preamble: bool


def read_messages(body: bytes, llm: LLM, settings: ServerSettings, caller: Caller = ANONYMOUS) -> Job:
    """Everything between the body's bytes and the engine. Takes time for long prompts: run it off the event loop.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    asked = _read(body, llm, settings)
    fields = asked.fields
    limit = read_count(fields, "max_tokens")
    if limit is None:
        raise bad_value(fields.at("max_tokens"), "is required")
    stream = fields.boolean("stream") or False
    sampling = {name: fields.data.get(name) for name in _SAMPLING}
    marked_s = read_marks(fields)
    conversation = Conversation(
        asked.turns,
        asked.form,
        asked.options,
        read_sampling(
            _Sampling({**sampling, "stop": fields.array("stop_sequences")}),
            settings,
            vocab_size=llm.tokenizer.vocab_size,
            logprobs=None,
        ),
        cache=read_cache(fields, settings),
        limit=limit,
        thinking_budget=asked.budget,
        one_call=asked.one_call,
        hints=caller.hints,
    )
    prepared = prepare(conversation, llm, settings, prefix="msg_")
    (request,), (said,) = prepared.requests, prepared.said
    request = keep_marked(request, prepared.rendered, marked_s)
    return Job(
        (request,),
        MessagesAnswer(request, said, model=asked.model),
        stream,
        "messages",
        trigger=conversation.trigger,
        preamble=asked.preamble,
    )


def count_tokens(body: bytes, llm: LLM, settings: ServerSettings, _: Caller = ANONYMOUS) -> dict[str, Any]:
    """``{"input_tokens"}``: the prompt's length, also of one that is too long.

    Raises:
        As `read_messages`; `max_tokens` is not needed.
    """
    asked = _read(body, llm, settings)
    rendered = llm.renderer.render(asked.turns, tools=asked.form.tools or None, **asked.options)
    return {"input_tokens": len(rendered.token_ids)}


def _read(body: bytes, llm: LLM, settings: ServerSettings) -> _Asked:
    data = parse_object(body, max_depth=settings.max_depth)
    system = settings.preambles.strip(data.get("system"))
    fields = Fields({**data, "system": system.value})
    model = check_model(fields, settings)
    fields.refuse(MESSAGES.refused)
    turns = read_system(fields) + read_turns(fields, limit=settings.max_messages)
    tools = read_tools(fields, limit=settings.max_tools)
    choice = read_choice(fields, tools)
    thinking, budget = _thinking(fields, settings)
    grammar, path = _format(fields) or (None, "")
    form = shape(
        Fields({"tool_choice": choice.value, "parallel_tool_calls": not choice.one_call}),
        tools.functions,
        llm.tool_grammars,
        grammar,
        path,
        about_words=True,
    )
    options = _kept_thinking(fields) | template_options(fields, settings, thinking=thinking)
    last = turns[-1]
    if last["role"] == "assistant" and last["content"] and not last.get("tool_calls"):
        options["continue_final_message"] = True
    return _Asked(fields, model, turns, form, choice.one_call, options, budget, system.removed)


def _thinking(fields: Fields, settings: ServerSettings) -> tuple[bool, int | None]:
    """Whether the model thinks first, and for how many tokens at most."""
    effort = (fields.fields("output_config") or Fields({})).string("effort")
    asked = fields.fields("thinking")
    if asked is None:
        return settings.enable_thinking and effort != "none", None
    kind = asked.string("type")
    if kind in ("disabled", "between_tools"):
        return False, None
    if kind not in ("enabled", "adaptive"):
        raise bad_value(asked.at("type"), f"must be enabled, adaptive, between_tools or disabled, got {kind!r:.60}")
    return True, read_count(asked, "budget_tokens", low=0)


def _kept_thinking(fields: Fields) -> dict[str, Any]:
    """The template's argument for `clear_thinking` edits that keep all: without it a user's turn drops earlier ones.

    Other edits are the client's to make: the prompt is what the messages say.
    """
    management = fields.fields("context_management") or Fields({})
    for edit in management.array("edits") or []:
        if isinstance(edit, dict) and str(edit.get("type")).startswith("clear_thinking") and edit.get("keep") == "all":
            return {"preserve_thinking": True}
    return {}


def _format(fields: Fields) -> tuple[Grammar, str] | None:
    """The grammar that the answer's words are to follow, and the field that asks for it."""
    config = fields.fields("output_config") or Fields({}, "output_config")
    asked, older = config.fields("format"), fields.fields("output_format")
    if asked is not None and older is not None:
        raise bad_value(older.path, f"and {asked.path} are both set")
    return read_format(asked or older, flat=True)
