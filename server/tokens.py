"""POST /tokenize and /detokenize, in the form that vLLM gives them; nothing is generated.

`/tokenize` takes a `prompt` (as /v1/completions does: control-token literals are control tokens) or `messages` with
`tools` and the template's arguments (as /v1/chat/completions does). A text longer than the context is counted like any
other. `add_special_tokens` has no effect: tokenizers of this family put nothing in front or behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgellm.server.body import parse_object
from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.chat import render_options
from edgellm.server.fields import Fields, bad_value
from edgellm.server.messages import read_messages, read_tools
from edgellm.server.names import check_model
from edgellm.server.sampling import check_token_ids
from edgellm.server.settings import ServerSettings

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


def tokenize(body: bytes, llm: LLM, settings: ServerSettings, _: Caller = ANONYMOUS) -> dict[str, Any]:
    """``{"tokens", "count", "max_model_len", "token_strs"}``; `token_strs` only when asked for, else null.

    Raises:
        RequestError: naming the field at fault.
        ApiError: 404 for another model.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    check_model(fields, settings)
    with_strings = fields.boolean("return_token_strs") or False
    tokens = _tokens(fields, llm, settings)
    text = llm.tokenizer.token_bytes
    return {
        "tokens": list(tokens),
        "count": len(tokens),
        "max_model_len": llm.info.max_tokens,
        "token_strs": [text(token).decode("utf-8", "replace") for token in tokens] if with_strings else None,
    }


def detokenize(body: bytes, llm: LLM, settings: ServerSettings, _: Caller = ANONYMOUS) -> dict[str, Any]:
    """``{"prompt"}``: the text of `tokens`, control tokens included.

    Raises:
        As `tokenize`.
    """
    fields = Fields(parse_object(body, max_depth=settings.max_depth))
    check_model(fields, settings)
    tokens = fields.array("tokens")
    if tokens is None:
        raise bad_value(fields.at("tokens"), "is required")
    return {"prompt": llm.tokenizer.decode(check_token_ids(tokens, fields.at("tokens"), llm.tokenizer.vocab_size))}


def _tokens(fields: Fields, llm: LLM, settings: ServerSettings) -> Sequence[int]:
    prompt = fields.string("prompt")
    if fields.data.get("messages") is None:
        if prompt is None:
            raise bad_value(fields.at("prompt"), "is required, or messages")
        return llm.tokenizer.encode(prompt, allow_special=True)
    if prompt is not None:
        raise bad_value(fields.at("prompt"), "and messages are both set")
    messages = read_messages(fields, limit=settings.max_messages)
    tools = read_tools(fields, limit=settings.max_tools)
    return llm.renderer.render(messages, tools=tools or None, **render_options(fields, settings)).token_ids
