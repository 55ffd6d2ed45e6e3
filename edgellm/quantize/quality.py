"""How well a bundle predicts text, alone or against a reference bundle: perplexity, KL divergence, agreement.

Both run the same tokens through `verify` in chains, so this works with every executor and measures what decoding does,
not a prefill of its own. What must stay true: every token but the first of a text is predicted from all before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.base import Executor, TokenTree
from edgellm.errors import ConfigError
from edgellm.progress import Progress
from edgellm.quantize.texts import Text
from edgellm.runtime.llm import LLM, RequestOptions
from edgellm.runtime.types import CacheParams

F64 = NDArray[np.float64]
_LARGEST_LOSS: Final = 700.0  # above, its exponential has no float64


@dataclass(frozen=True, slots=True)
class Quality:
    """Over `tokens` predicted tokens. Divergences in nats; None without a reference.

    Attributes:
        texts: how many of them had tokens to predict.
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


def accepted_length(
    llm: LLM, speculation: SpeculationParams, texts: Sequence[Text], tokens: int, progress: Progress | None = None
) -> float:
    """Mean tokens per verify step of greedy continuations, the full tree each time.

    Args:
        texts: each is continued from its answer on, or from its middle.
        tokens: to write for each, two at least.
        progress: called with ("generate", texts done, texts in all).
    """
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    options = RequestOptions(speculation=speculation, cache=CacheParams(read=False, write=False))
    steps = accepted = 0
    for done, text in enumerate(texts, 1):
        prompt = text.ids[: text.answer or (len(text.ids) + 1) // 2]
        usage = llm.generate(prompt, sampling, options).usage
        steps, accepted = steps + usage.verify_steps, accepted + usage.accepted_tokens
        if progress is not None:
            progress("generate", done, len(texts))
    return 1 + accepted / steps if steps else 1.0


def measure_quality(
    texts: Sequence[Text],
    bundle: Executor,
    reference: Executor | None = None,
    *,
    answers: bool = False,
    progress: Progress | None = None,
) -> Quality:
    """Run every text through one or both executors (slot 0).

    Args:
        texts: no longer than the contexts.
        answers: only tokens of the last answer of conversations count, and texts without one are left out.
        progress: called with ("measure", texts done, texts in all).

    Raises:
        ConfigError: an executor cannot verify, the vocabularies differ, no text has an answer, or a mean loss is NaN
            or too large for a perplexity.
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
    for done, text in enumerate(texts):
        if progress is not None:
            progress("measure", done, len(texts))
        first = text.answer if answers else 1
        if first is None:
            continue
        ids = text.ids
        count += 1
        streams = [_log_probabilities(executor, ids) for executor in executors]
        for place, rows in enumerate(zip(*streams, strict=True), 1):
            if place < first:
                continue
            for loss, row in zip(losses, rows, strict=True):
                loss.append(-float(row[ids[place]]))
            if len(rows) == 2:
                mine, theirs = rows
                divergences.append(float(np.exp(theirs) @ (theirs - mine)))
                agreed += int(mine.argmax() == theirs.argmax())
    if progress is not None:
        progress("measure", len(texts), len(texts))
    if not losses[0]:
        raise ConfigError(
            "no text has an answer: a conversation must end with the assistant's message, which must begin within the "
            "length that texts are cut to"
        )
    means = [sum(loss) / len(loss) for loss in losses]
    if not all(mean < _LARGEST_LOSS for mean in means):
        raise ConfigError(f"a bundle does not predict text at all: its mean loss is {max(means, key=abs)}")
    perplexities = list(map(exp, means))
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
