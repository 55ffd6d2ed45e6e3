"""POST /v1/chat/completions/render: the prompt that a chat request would give, for debugging a template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgellm.server.caller import ANONYMOUS, Caller
from edgellm.server.chat import read_chat
from edgellm.server.settings import ServerSettings

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


def render_chat(body: bytes, llm: LLM, settings: ServerSettings, _: Caller = ANONYMOUS) -> dict[str, Any]:
    """The prompt of a chat body, which is read exactly as the chat endpoint reads it; nothing is generated.

    ``stable_lengths`` says how many leading tokens the conversation's next prompt may repeat (snapshots are taken
    there), ``thinking_open`` whether the answer begins inside a thinking block.

    Raises:
        As `read_chat`.
    """
    rendered = read_chat(body, llm, settings).rendered
    return {
        "prompt": llm.tokenizer.decode(rendered.token_ids),
        "token_ids": list(rendered.token_ids),
        "count": len(rendered.token_ids),
        "max_model_len": llm.info.max_tokens,
        "stable_lengths": list(rendered.stable_lengths),
        "thinking_open": rendered.thinking_open,
    }
