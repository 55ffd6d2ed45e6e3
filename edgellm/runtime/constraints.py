"""From what a request asks of its answer to the constraint that makes the model obey.

What must stay true: reasoning is never held to the grammar of the answer; a constraint serves one request.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from edgellm.decode.constraint import Constraint
from edgellm.decode.grammar import GrammarCompiler
from edgellm.decode.thinking import ThinkingConstraint
from edgellm.errors import RequestError
from edgellm.text.grammars import Grammar, framed
from edgellm.text.tokenizer import Tokenizer

_END_TAG: Final = "</think>"
_CLOSING: Final = f"\n{_END_TAG}\n\n"  # as templates of the family close a block


class Constraints:
    """Makes constraints for one model. Any thread may use it.

    Args:
        tokenizer: of the model.
        vocab_size: width of a row of logits.
        eos: tokens that end a sequence.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = frozenset(eos)
        self._compiler = GrammarCompiler(tokenizer.to_json, vocab_size=vocab_size, eos=eos)

    def make(
        self, grammar: Grammar | None, *, param: str, thinking_open: bool, max_thinking_tokens: int | None = None
    ) -> Constraint | None:
        """A constraint for one answer; None when nothing is asked.

        Args:
            grammar: of the answer, behind its reasoning; None: free.
            param: the field that asked for it.
            thinking_open: the prompt ends inside a reasoning block.
            max_thinking_tokens: the block is closed after that many; without an open block it has no effect.

        Raises:
            RequestError: the grammar cannot be compiled, or the model has no token that ends a reasoning block.
        """
        answer = None
        if grammar is not None:
            answer = self._compiler.constraint(framed(grammar, behind_thinking=thinking_open), param=param)
        if not thinking_open or (answer is None and max_thinking_tokens is None):
            return answer
        end_tag = self._tokenizer.added.get(_END_TAG)
        if end_tag is None:
            where = param if max_thinking_tokens is None else "max_thinking_tokens"
            raise RequestError(f"{where}: this model has no {_END_TAG} token; turn thinking off", param=where)
        return ThinkingConstraint(
            answer,
            end_tag=end_tag,
            closing=self._tokenizer.encode(_CLOSING, allow_special=True),
            ending=self._eos,
            vocab_size=self._vocab_size,
            budget=max_thinking_tokens,
            token_bytes=self._tokenizer.token_bytes,
        )
