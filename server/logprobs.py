"""Log-probabilities as the OpenAI API shows them.

Rule: there is one entry for every generated token, in order, whatever the token became (reasoning, tool-call markup,
end of turn): `len(content) == usage.completion_tokens`. In a stream, entries travel with the chunk of the output that
brought them, or with the next chunk when that output had nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgellm.runtime.types import TokenLogprob
from edgellm.text.tokenizer import Tokenizer

FLOOR = -9999.0  # stands for the logarithm of zero, which JSON has no number for


def chat_entries(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Entries of ``choices[0].logprobs.content``."""
    entries = []
    for item in logprobs:
        entry = _entry(tokenizer, item.token_id, item.logprob)
        entry["top_logprobs"] = [_entry(tokenizer, token, logprob) for token, logprob in item.top]
        entries.append(entry)
    return entries


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, FLOOR), "bytes": list(raw)}


class CompletionLogprobs:
    """The older form of ``/v1/completions``: parallel lists, with offsets into the raw text of the tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def block(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        tokens, values, tops, offsets = [], [], [], []
        for item in logprobs:
            text = self._text(item.token_id)
            tokens.append(text)
            values.append(max(item.logprob, FLOOR))
            tops.append({self._text(token): max(logprob, FLOOR) for token, logprob in item.top})
            offsets.append(self._offset)
            self._offset += len(text)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
