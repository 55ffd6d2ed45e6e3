"""The draft tree: which tokens to verify in one step.

A level is drafted at a time. A node is expanded only while it is among the best `nodes - 1` candidates known so far by
cumulative draft log-probability: log-probabilities are not positive, so a node that has fallen out, and everything
below it, can never come back. What must stay true: the tree kept is exactly the `nodes` best of the full top-k tree of
that depth, closed under parents and in topological order, and drafting stops as soon as nothing can change it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from edgellm.decode.params import SpeculationParams
from edgellm.engine.base import DraftNodes, DraftResult, Executor, TokenTree


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree to verify and what it cost."""

    tree: TokenTree
    calls: int  # Executor.draft calls
    logprobs: tuple[float, ...]  # cumulative draft log-probability of each node; 0 for the root


class Drafter:
    """Builds one tree: alternate `pending` (nodes to run through the draft layer) and `feed` (their results).

    Args:
        slot: the sequence.
        root: its next token, already chosen.
        params: shape of the tree.
        max_nodes: most nodes to verify, root included (of the executor; the smaller of it and `params.nodes` counts).
        max_depth: longest path below the root that can still be emitted.
        terminal: tokens after which nothing is emitted (EOS): their nodes are kept but not expanded.
    """

    def __init__(
        self,
        slot: int,
        root: int,
        params: SpeculationParams,
        *,
        max_nodes: int,
        max_depth: int,
        terminal: Collection[int] = (),
    ) -> None:
        self._slot = slot
        self._top_k = params.top_k
        self._keep = min(params.nodes, max_nodes) - 1  # nodes below the root
        self._max_depth = min(params.steps, max_depth)
        self._terminal = terminal
        # Every node of the pool, the root first; a level follows the one above it.
        self._tokens = [root]
        self._parents = [-1]
        self._scores = [0.0]
        self._number = {0: 0}  # pool index → the executor's number, for expanded nodes
        self._frontier = [0] if self._keep > 0 and self._max_depth > 0 else []
        self._best: list[int] = []  # the best `keep` pool indices, best first
        self._depth = 0
        self.calls = 0

    def pending(self) -> DraftNodes | None:
        """The nodes to draft from next; None when the tree is final."""
        if not self._frontier:
            return None
        if self._depth == 0:
            return DraftNodes(self._slot, self._tokens, self._parents)
        for index in self._frontier:
            self._number[index] = len(self._number)
        return DraftNodes(
            self._slot,
            [self._tokens[index] for index in self._frontier],
            [self._number[self._parents[index]] for index in self._frontier],
        )

    def feed(self, result: DraftResult) -> None:
        """Results for the nodes of the last `pending()`, in its order."""
        self.calls += 1
        self._depth += 1
        first = len(self._tokens)
        ids, logprobs = result.token_ids.tolist(), result.logprobs.tolist()
        for at, above in enumerate(self._frontier):
            base = self._scores[above]
            for token, logprob in zip(ids[at][: self._top_k], logprobs[at], strict=False):
                if not math.isfinite(logprob):  # never drafted: a token outside the draft's distribution
                    continue
                self._tokens.append(token)
                self._parents.append(above)
                self._scores.append(base + min(logprob, 0.0))
        pool = range(1, len(self._tokens))
        self._best = sorted(pool, key=lambda index: (-self._scores[index], index))[: self._keep]
        self._frontier = []
        if self._depth < self._max_depth:
            self._frontier = sorted(
                index for index in self._best if index >= first and self._tokens[index] not in self._terminal
            )

    def finish(self) -> Draft:
        """The best tree of what was drafted so far."""
        kept = [0, *sorted(self._best)]
        place = {index: position for position, index in enumerate(kept)}
        parents = [-1, *[place[self._parents[index]] for index in kept[1:]]]
        tree = TokenTree(self._slot, [self._tokens[index] for index in kept], parents)
        return Draft(tree, self.calls, tuple(self._scores[index] for index in kept))


def draft_tree(
    executor: Executor,
    slot: int,
    root: int,
    params: SpeculationParams,
    *,
    max_depth: int,
    terminal: Collection[int] = (),
) -> Draft:
    """Draft a tree for `slot` under its next token `root`. See `Drafter` for the arguments.

    With speculation off, no room or an executor without a draft layer or verification the tree is the root alone.
    """
    info = executor.info
    usable = min(info.max_tree, params.nodes) if info.draft_top_k else 1
    drafter = Drafter(slot, root, params, max_nodes=usable, max_depth=max_depth, terminal=terminal)
    while (nodes := drafter.pending()) is not None:
        drafter.feed(executor.draft([nodes])[0])
    return drafter.finish()
