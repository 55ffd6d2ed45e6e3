"""How far a kernel's outputs may be from its reference's, and which of them mean something.

The limits are those that the CPU tests hold the same sources to. A GPU adds approximate exponentials (a few units in
the last place of float32) and its own order of additions inside matrix products, both far below them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_EPS: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}


@dataclass(frozen=True, slots=True)
class Limit:
    """|made - expected| may be steps · eps of the dtype · |expected| + relative · |expected| + absolute.

    With all of them 0 the bytes must be equal. `codes`: E4M3 codes, of which one in a thousand may be the next one
    (a value in the middle of two). `rows`: the first COUNT rows mean something, and rows behind ROWS are as before.
    """

    steps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    codes: bool = False
    rows: bool = False

    def excess(self, made: Array, expected: Array) -> float:
        """The largest difference as a share of what is allowed: at most 1 passes; NaN counts as infinite where the
        other is a number."""
        if not expected.size:
            return 0.0
        if self.codes:
            apart = codes_apart(made, expected)
            return max(float(apart.max()), float(apart.sum()) / (apart.size / 1000))
        if not (self.steps or self.relative or self.absolute):
            return 0.0 if _bytes(made) == _bytes(expected) else math.inf
        eps = _EPS[expected.dtype.name] if self.steps else 0.0
        relative = self.relative + self.steps * eps
        made, expected = made.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            share = np.abs(made - expected) / (relative * np.abs(expected) + self.absolute)
        share = np.where((made == expected) | (np.isnan(made) & np.isnan(expected)), 0, share)
        largest: np.float64 = np.where(np.isnan(share), np.inf, share).max()
        return float(largest)


EXACT: Final = Limit()
_EXACT_ROWS: Final = Limit(rows=True)
_ROUNDED_ROWS: Final = Limit(steps=1, absolute=1e-6, rows=True)
_GATES: Final = Limit(relative=2e-6, absolute=1e-7, rows=True)
_OPERANDS: Final = {
    **dict.fromkeys(("q", "k", "v"), _ROUNDED_ROWS),
    **dict.fromkeys(("log_decay", "beta"), _GATES),
}
_ATTENTION: Final = Limit(steps=1, absolute=1e-3, rows=True)
_CANDIDATES: Final = {"ids": EXACT, "values": EXACT}
_PAGES: Final = {"k_pages": EXACT, "v_pages": EXACT}

# By kernel and output. What tree_attn_partial leaves depends on the splits, so `context` stands for what
# tree_attn_reduce makes of it.
LIMITS: Final[Mapping[str, Mapping[str, Limit]]] = {
    "tree_build": {"ancestors": EXACT, "depths": EXACT, "positions": EXACT},
    "tree_accept": {"accepted": EXACT, "emitted": EXACT},
    "sample_topk": _CANDIDATES,
    "draft_topk": {**_CANDIDATES, "log_norm": Limit(relative=1e-6, absolute=1e-5)},
    "gdn_prep": {**_OPERANDS, "conv_state": EXACT, "cap_c": _EXACT_ROWS},
    "gdn_prep_chain": _OPERANDS,
    "gdn_tree_verify": {
        "state": Limit(absolute=2e-6),
        "y": _ROUNDED_ROWS,
        "new_cap_k": _EXACT_ROWS,
        "new_cap_u": Limit(absolute=5e-6, rows=True),
        "new_cap_g": Limit(absolute=2e-6, rows=True),
    },
    "gdn_commit": {"state": Limit(absolute=2e-6), "conv_state": EXACT},
    "gdn_prefill": {
        "state": Limit(absolute=1e-5),
        "conv_state": EXACT,
        "y": Limit(steps=1, absolute=5e-6, rows=True),
    },
    "attn_prep": {
        "q_rotated": Limit(steps=1, absolute=1e-5, rows=True),
        "tail_k": Limit(codes=True),
        "tail_v": EXACT,
    },
    "tree_attn_partial": {"context": _ATTENTION},
    "tree_attn_reduce": {"context": Limit(steps=1, absolute=1e-5)},
    "attn_prefill": {"context": _ATTENTION},
    "kv_write": _PAGES,
    "kv_commit": _PAGES,
    "kv_copy_page": _PAGES,
}


def codes_apart(made: Array, expected: Array) -> NDArray[np.int64]:
    """How many E4M3 numbers lie between codes."""

    def rank(codes: Array) -> NDArray[np.int64]:
        bits = codes.view(np.uint8).astype(np.int64)
        return np.where(bits & 128, -(bits & 127), bits)

    apart: NDArray[np.int64] = np.abs(rank(made) - rank(expected))
    return apart


def _bytes(array: Array) -> bytes:
    return array.tobytes()
