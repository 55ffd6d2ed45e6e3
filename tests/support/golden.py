"""One set of runs, made by the executor and by transformers, whose logits must agree.

A run is a prompt (random, or one token repeated), 50 decoded tokens, a 16-node tree, a commit of one of its paths and
20 tokens more. Logits are compared on COLUMNS vocabulary columns, which keeps the committed files small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import Chunk, Executor, TokenTree

SHAPES = ("parity-equal", "parity-grouped", "parity-odd")
PROMPTS = ("random", "repeated")
GOLDEN = Path(__file__).resolve().parents[1] / "graph" / "golden"
COLUMNS = 48
TOLERANCE = 1e-4
PARENTS = (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10, 10, 13)
PATH = (0, 1, 4, 7, 10, 13)
Logits = dict[str, NDArray[np.floating]]
Forward = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # tokens [n] -> logits [n, V]


@dataclass(frozen=True)
class Run:
    prompt: NDArray[np.int64]
    decoded: NDArray[np.int64]
    tree: NDArray[np.int64]
    after: NDArray[np.int64]
    columns: NDArray[np.int64]


def make_run(kind: str, vocab: int) -> Run:
    """The tokens of a run. PCG64 integers are stable across NumPy versions."""
    rng = np.random.default_rng(7)
    prompt = rng.integers(0, vocab, 150) if kind == "random" else np.full(512, 7)
    tree = rng.integers(0, vocab, 16) if kind == "random" else np.full(16, 7)
    columns = np.linspace(0, vocab - 1, COLUMNS).astype(np.int64)
    return Run(prompt, rng.integers(0, vocab, 50), tree, rng.integers(0, vocab, 20), columns)


def executor_logits(executor: Executor, run: Run) -> Logits:
    """The run through slots 0 (one prefill) and 1 (odd chunks), on the run's columns."""
    out: dict[str, list[NDArray[np.floating]]] = {"prefill": [], "chunks": [], "decode": [], "tree": [], "after": []}

    def advance(slot: int, tokens: NDArray[np.int64]) -> NDArray[np.floating]:
        return executor.advance([Chunk(slot, tokens, True)]).row(0)[run.columns].copy()

    executor.reset(0)
    executor.reset(1)
    out["prefill"].append(advance(0, run.prompt))
    position = 0
    for size in (37, 1, 63, 3, 1024):
        if position < len(run.prompt):
            last = advance(1, run.prompt[position : position + size])
            position += size
    out["chunks"].append(last)
    out["decode"] = [advance(0, run.decoded[i : i + 1]) for i in range(len(run.decoded))]
    tree = executor.verify(TokenTree(0, [int(t) for t in run.tree], PARENTS))
    out["tree"] = [tree.row(i)[run.columns].copy() for i in range(len(run.tree))]
    executor.commit(0, PATH)
    out["after"] = [advance(0, run.after[i : i + 1]) for i in range(len(run.after))]
    return {name: np.stack(rows) for name, rows in out.items()}


def reference_logits(forward: Forward, run: Run) -> Logits:
    """The same logits from a function of whole sequences."""
    start = np.concatenate([run.prompt, run.decoded])
    plain = forward(start)[:, run.columns]
    tree = np.zeros((len(PARENTS), COLUMNS))
    for leaf in set(range(len(PARENTS))) - set(PARENTS):
        path = [leaf]
        while PARENTS[path[-1]] >= 0:
            path.append(PARENTS[path[-1]])
        tree[path[::-1]] = forward(np.concatenate([start, run.tree[path[::-1]]]))[len(start) :, run.columns]
    whole = np.concatenate([start, run.tree[list(PATH)], run.after])
    last = plain[len(run.prompt) - 1][None]
    return {
        "prefill": last,
        "chunks": last,
        "decode": plain[len(run.prompt) :],
        "tree": tree,
        "after": forward(whole)[-len(run.after) :, run.columns],
    }
