"""Grammars as constraints, by llguidance.

What must stay true: a grammar that cannot be compiled is refused before the request is queued, with the field named; a
constraint belongs to one sequence; every text that it lets through is one of the grammar's, and EOS is allowed exactly
where the text may end. Compiling and masking are bounded by llguidance's own limits, whatever a client sends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT: Final = 64  # compiled grammars
_MAX_ITEMS: Final = 10_000  # of the parser in one place: two for each of a thousand optional parameters
_DEAD_END: Final = "constraint_dead_end"
MAX_CHARS: Final = 1 << 20  # of one grammar


class GrammarConstraint:
    """Implements `Constraint` over one matcher, which it owns.

    Args:
        matcher: at its start.
        vocab_size: width of the masks; tokens beyond the tokenizer's are never allowed.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._mask: NDArray[np.bool_] | None = None

    def mask(self) -> NDArray[np.bool_]:
        """Tokens that may come next.

        Raises:
            RequestError: the grammar has become too costly to follow, or came to a place that no text can leave.
        """
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            if self._matcher.is_error():  # its mask would be that of a finished text
                raise RequestError(f"the grammar cannot go on: {_shown(self._matcher.get_error())}", code=_DEAD_END)
            self._mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        return self._mask

    def advance(self, token: int) -> None:
        if not self._matcher.is_stopped():  # once it is, EOS was or will be the only token
            self._matcher.consume_token(token)
            self._mask = None


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Any thread may use it.

    The first grammar waits until the vocabulary is indexed, about two seconds for one of 248,000 tokens.

    Args:
        tokenizer_json: gives that of the tokenizer library; called with the first grammar.
        vocab_size: width of a row of logits.
        eos: tokens that end a sequence.
    """

    def __init__(self, tokenizer_json: Callable[[], str], *, vocab_size: int, eos: Collection[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos = sorted(eos)
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def constraint(self, grammar: str, *, param: str) -> GrammarConstraint:
        """A constraint at the start of `grammar`.

        Args:
            grammar: in llguidance's Lark dialect, or its JSON list of grammars.
            param: the request's field that asked for it.

        Raises:
            RequestError: it does not compile, is too large, or no text fits it.
        """
        if len(grammar) > MAX_CHARS:
            raise _refused(param, f"is too large: {len(grammar)} characters, at most {MAX_CHARS}")
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = self._compile(grammar, param)
                self._compiled[grammar] = matcher
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return GrammarConstraint(matcher.deep_copy(), self._vocab_size)

    def _compile(self, grammar: str, param: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer

        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._eos)
        limits = LLParserLimits(verbose_errors=False, max_items_in_row=_MAX_ITEMS)
        matcher = LLMatcher(self._tokenizer, grammar, limits=limits, log_level=0)
        trial = matcher.deep_copy()
        if not matcher.is_error():
            trial.compute_bitmask()  # some faults show only when it starts
        if trial.is_error():
            raise _refused(param, f"cannot be compiled: {_shown(trial.get_error())}")
        return matcher


def _refused(param: str, problem: str) -> RequestError:
    return RequestError(f"{param} {problem}", param=param, code="invalid_grammar")


def _shown(message: str) -> str:
    said = " ".join(message.removesuffix("<non-verbose/>").split())[:300]
    return "no finite text fits it" if said.startswith("NoExtension") else said or "it is not valid"
