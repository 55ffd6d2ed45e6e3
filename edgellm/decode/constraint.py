"""The hook by which a grammar, a JSON schema or any other rule restricts the next token.

Decoding walks a tree along the tokens that it emits, so a constraint follows a single path: it is asked for a mask
before each draw and told the drawn token. Rows of nodes that are not visited need no mask.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """State of one sequence. Used from the engine thread only."""

    def mask(self) -> NDArray[np.bool_] | None:
        """Tokens allowed next, [vocab]; None when every token is. Where the text may end, EOS must be among them.

        The same until the next `advance`. The array is only read.
        """
        ...

    def advance(self, token: int) -> None:
        """`token`, allowed by the last mask, was emitted."""
        ...
