"""Which dialect a model speaks, by what its chat template prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# In this order: a template may also hold what comes later in the list.
_SIGNS: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    ("qwen3_coder", lambda source: "<function=" in source and "<parameter=" in source),
    ("harmony", lambda source: "<|channel|>" in source),
    ("deepseek_v3", lambda source: "<｜tool▁calls▁begin｜>" in source),
    ("glm45", lambda source: "<arg_key>" in source),
    ("mistral", lambda source: "[TOOL_CALLS]" in source),
    ("nemotron_deci", lambda source: "<TOOLCALL>" in source),
    ("hermes", lambda source: "<tool_call>" in source),
    ("pythonic", lambda source: any(sign in source for sign in ("<|python_start|>", "func_name1(", "name + '('"))),
    (
        "llama3_json",
        lambda source: any(sign in source for sign in ("<|python_tag|>", "ipython", '"parameters": ')),
    ),
)
DEFAULT: Final = "qwen3_coder"


def detect(template_source: str) -> str:
    """The dialect of a chat template; `DEFAULT` when it shows none."""
    return next((dialect for dialect, shows in _SIGNS if shows(template_source)), DEFAULT)
