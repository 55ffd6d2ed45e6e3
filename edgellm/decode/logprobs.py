"""Log-probabilities that are reported to the client: of the model itself, before any processor or filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.filtering import largest


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a chosen token under the unmodified model distribution, with the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(row: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """Log-softmax of `row` [vocab] at `token` and at its `top` best tokens, best first."""
    best = row.max()
    norm = float(best) + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
    ids = largest(row, top) if top else np.empty(0, np.int64)
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return TokenLogprob(token, float(row[token]) - norm, tuple((int(i), float(row[i]) - norm) for i in ids))
