"""How well a bundle predicts text, alone or against a reference bundle: perplexity, KL divergence, agreement.

Both run the same tokens through `verify` in chains, so this works with every executor and measures what decoding does,
not a prefill of its own. What must stay true: every token but the first of a text is predicted from all before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import Executor, TokenTree
from edgellm.errors import ConfigError

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """Over `tokens` predicted tokens. Divergences in nats; None without a reference.

    Attributes:
        perplexity: exp of the mean negative log-likelihood.
        reference_perplexity: the reference's.
        kl: mean of KL(reference || bundle).
        kl_p99: 99th percentile of the same over tokens.
        top1: share of tokens whose most probable continuation is the reference's.
    """

    texts: int
    tokens: int
    perplexity: float
    reference_perplexity: float | None = None
    kl: float | None = None
    kl_p99: float | None = None
    top1: float | None = None


def measure_quality(texts: Iterable[Sequence[int]], bundle: Executor, reference: Executor | None = None) -> Quality:
    """Run every text through one or both executors (slot 0).

    Args:
        texts: token ids of each, two or more; no longer than the contexts.

    Raises:
        ConfigError: an executor cannot verify, or the vocabularies differ.
    """
    executors = [bundle] if reference is None else [bundle, reference]
    if any(executor.info.max_tree < 1 for executor in executors):
        raise ConfigError("quality is measured with verify, which this executor does not have")
    if len({executor.info.vocab_size for executor in executors}) > 1:
        raise ConfigError("the bundles have different vocabularies")
    count = 0
    losses: list[list[float]] = [[] for _ in executors]
    divergences: list[float] = []
    agreed = 0
    for ids in texts:
        count += 1
        streams = [_log_probabilities(executor, ids) for executor in executors]
        for place, rows in enumerate(zip(*streams, strict=True), 1):
            for loss, row in zip(losses, rows, strict=True):
                loss.append(-float(row[ids[place]]))
            if len(rows) == 2:
                mine, theirs = rows
                divergences.append(float(np.exp(theirs) @ (theirs - mine)))
                agreed += int(mine.argmax() == theirs.argmax())
    perplexities = [exp(sum(loss) / len(loss)) for loss in losses]
    tokens = len(losses[0])
    if reference is None:
        return Quality(count, tokens, perplexities[0])
    kl, p99 = float(np.mean(divergences)), float(np.quantile(divergences, 0.99))
    return Quality(count, tokens, perplexities[0], perplexities[1], kl, p99, agreed / tokens)


def _log_probabilities(executor: Executor, ids: Sequence[int]) -> Iterator[F64]:
    """After each token but the last: log-probabilities [vocab] of the next one."""
    step = executor.info.max_tree
    executor.reset(0)
    inputs = list(ids[:-1])
    for start in range(0, len(inputs), step):
        part = inputs[start : start + step]
        logits = executor.verify(TokenTree(0, part, list(range(-1, len(part) - 1))))
        rows = [np.array(logits.row(index), np.float64) for index in range(len(part))]  # valid until the next call
        executor.commit(0, list(range(len(part))))
        for row in rows:
            row -= row.max()
            row -= np.log(np.exp(row).sum())
            yield row
    executor.reset(0)
