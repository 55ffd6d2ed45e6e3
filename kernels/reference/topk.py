"""References of the kernels that choose candidates."""

from __future__ import annotations

import numpy as np

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Tensors


def sample_topk(sizes: Sizes, t: Tensors) -> None:
    """Candidates by falling logit, then rising id, NaN after every number."""
    for row, logits in enumerate(t["logits"]):
        ids = np.argsort(-logits, kind="stable")[: sizes.top_k]  # NumPy sorts NaN last
        t["ids"][row] = ids
        t["values"][row] = logits[ids]


def draft_topk(sizes: Sizes, t: Tensors) -> None:
    """`sample_topk`, and log_norm = log(sum over the row's numbers of exp(logit)); NaN is no number."""
    sample_topk(sizes, t)
    for row, logits in enumerate(t["logits"].astype(np.float64)):
        numbers = logits[~np.isnan(logits)]
        peak = numbers.max(initial=-np.inf)
        finite = np.isfinite(peak)
        t["log_norm"][row] = peak + np.log(np.exp(numbers - peak).sum()) if finite else peak
