"""What the readers of requests need of an LLM, without an engine."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from edgellm.runtime.constraints import Constraints
from edgellm.text.chat import ChatRenderer
from edgellm.text.dialects import make_parser
from edgellm.text.tokenizer import Tokenizer
from edgellm.text.tool_grammars import ToolGrammars


def _parser(dialect: str, tools: Any, **options: Any) -> Any:
    return make_parser(dialect, tools, parse_tools=bool(tools), **options)


def bare_llm(tokenizer: Tokenizer, renderer: ChatRenderer, *, context: int) -> Any:
    return SimpleNamespace(
        tokenizer=tokenizer,
        renderer=renderer,
        info=SimpleNamespace(max_tokens=context, fingerprint="weights"),
        parser=partial(_parser, renderer.dialect),
        constraints=Constraints(tokenizer, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos_token_ids),
        tool_grammars=ToolGrammars(renderer.dialect, tokenizer.split, tokenizer.added),
    )
