"""Noise of sampling as a pure function of (seed, position, token).

The draw is Gumbel-max: the token with the highest logit / temperature + Gumbel noise has exactly the softmax
distribution (Gumbel 1954; Maddison et al. 2014). Against an inverse CDF this costs a hash per candidate, and gains
that rounding in one logit can move only that token: a draw changes only where the two best sums nearly tie, whatever
the vocabulary, while every edge of a CDF moves with every logit before it. The near-tie margin is then in units of
logits, as it is for greedy decoding. What must stay true: no state, no dependence on which other tokens are candidates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GUMBEL_MAX = 36.74  # -log(-log(1 - 2**-53)): no noise is above this
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of `tokens`, in (-3.7, GUMBEL_MAX).

    Args:
        seed: 64-bit seed of the request.
        position: index in the sequence of the token to draw.
        tokens: token ids, any order.

    The uniform behind it is 52 bits of splitmix64 (Steele et al. 2014), counted by token id from a start that is
    itself hashed from seed and position.
    """
    start = np.uint64(_mix(_mix(seed + _GOLDEN & _MASK) + position * _GOLDEN & _MASK))
    bits = tokens.astype(np.uint64)
    bits *= np.uint64(_GOLDEN)
    bits += start
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_M1)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_M2)
    bits ^= bits >> np.uint64(31)
    bits >>= np.uint64(12)
    noise = bits.astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    for _ in range(2):
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)
