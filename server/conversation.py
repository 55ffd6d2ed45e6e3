"""What every chat surface comes down to: a conversation to render, a form, sampling; and from it engine requests.

What must stay true: equal conversations give equal prompts and requests, whichever surface they came through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgellm.decode.params import SamplingParams
from edgellm.decode.prediction import Prediction
from edgellm.runtime.types import CacheParams, Request
from edgellm.server.choices import one_per_choice
from edgellm.server.fields import Fields, bad_value
from edgellm.server.names import new_id
from edgellm.server.said import Said
from edgellm.server.sampling import clamp_to_context
from edgellm.server.sessions.hints import NO_HINTS, Hints, hinted
from edgellm.server.sessions.identity import Trigger
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import Form
from edgellm.text.chat import Rendered

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_RESERVED_KWARGS = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Attributes:
    messages, form.tools: in the OpenAI chat form, checked.
    options: of the renderer: the template's own, and how the prompt ends.
    sampling: all but its `max_tokens`.
    cache: how the prefix cache is used; retention that is left open goes by the parts of the prompt.
    limit: most tokens to generate; None: the server's default. Clamped to the context.
    thinking_budget: reasoning is closed after that many tokens.
    one_call: the answer ends with its first whole tool call.
    n: answers.
    hints: how it is to be scheduled; their salt is the cache's.
    """

    messages: list[dict[str, Any]]
    form: Form
    options: Mapping[str, Any]
    sampling: SamplingParams
    cache: CacheParams
    limit: int | None = None
    thinking_budget: int | None = None
    one_call: bool = False
    prediction: Prediction | None = None
    n: int = 1
    hints: Hints = NO_HINTS

    @property
    def trigger(self) -> Trigger:
        """What the model is to answer."""
        role = self.messages[-1]["role"]
        return "user_message" if role == "user" else "tool_result" if role == "tool" else "other"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation that fits: its prompt, and a request and a reader for each answer."""

    rendered: Rendered
    requests: tuple[Request, ...]
    said: tuple[Said, ...]


def prepare(conversation: Conversation, llm: LLM, settings: ServerSettings, *, prefix: str) -> Prepared:
    """Render, and make the requests; `prefix` begins their ids. Takes time for long prompts.

    Raises:
        RequestError: the template refuses the conversation, or it does not fit the context.
    """
    tools = conversation.form.tools
    rendered = llm.renderer.render(conversation.messages, tools=tools or None, **conversation.options)
    limit = conversation.limit or settings.sampling.max_tokens
    request = Request(
        id=new_id(prefix),
        prompt=rendered.token_ids,
        sampling=replace(
            conversation.sampling, max_tokens=clamp_to_context(len(rendered.token_ids), limit, llm.info.max_tokens)
        ),
        cache=conversation.cache.by_prompt_part(rendered.head_length),
        stable_lengths=rendered.stable_lengths,
        deadline_s=settings.deadline_s,
        prediction=conversation.prediction,
    )
    request = hinted(request, conversation.hints)
    requests = tuple(
        replace(
            each,
            constraint=llm.constraints.make(
                conversation.form.grammar,
                param=conversation.form.param,
                thinking_open=rendered.thinking_open,
                max_thinking_tokens=conversation.thinking_budget,
            ),
        )
        for each in one_per_choice(request, conversation.n)
    )
    said = tuple(
        Said(
            llm.tokenizer,
            llm.parser(tools, thinking_open=rendered.thinking_open, id_seed=each.id),
            thinking_open=rendered.thinking_open,
            one_call=conversation.one_call,
        )
        for each in requests
    )
    return Prepared(rendered, requests, said)


def template_options(fields: Fields, settings: ServerSettings, *, thinking: bool) -> dict[str, Any]:
    """The template's arguments: what `thinking` and the settings say, and above it `chat_template_kwargs`.

    Raises:
        RequestError: one of them is the server's to set.
    """
    options: dict[str, Any] = {"enable_thinking": thinking}
    if settings.preserve_thinking:
        options["preserve_thinking"] = True
    given = fields.fields("chat_template_kwargs")
    if given is None:
        return options
    for name in sorted(_RESERVED_KWARGS & given.data.keys()):
        raise bad_value(given.at(name), "is set by the server")
    for name in ("enable_thinking", "preserve_thinking"):
        given.boolean(name)
    return options | {name: value for name, value in given.data.items() if value is not None}
