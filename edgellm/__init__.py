"""edgellm: serve coding agents on Qwen3.6-type hybrid models from one edge box.

Importing this package loads nothing else; the names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgellm.decode.params import SamplingParams, SpeculationParams
    from edgellm.runtime.llm import LLM
    from edgellm.runtime.results import ChatResult, Result
    from edgellm.runtime.types import CacheParams

__all__ = ["LLM", "CacheParams", "ChatResult", "Result", "SamplingParams", "SpeculationParams"]

_HOME = {
    "LLM": "edgellm.runtime.llm",
    "CacheParams": "edgellm.runtime.types",
    "ChatResult": "edgellm.runtime.results",
    "Result": "edgellm.runtime.results",
    "SamplingParams": "edgellm.decode.params",
    "SpeculationParams": "edgellm.decode.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
