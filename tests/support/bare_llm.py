"""What the readers of requests need of an LLM, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from edgellm.runtime.constraints import Constraints
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars


def bare_llm(tokenizer: Tokenizer, renderer: ChatRenderer, *, context: int) -> Any:
    return SimpleNamespace(
        tokenizer=tokenizer,
        renderer=renderer,
        info=SimpleNamespace(max_tokens=context, fingerprint="weights"),
        constraints=Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids),
        tool_grammars=ToolGrammars("qwen3_coder", tokenizer.split, tokenizer.added),
    )
