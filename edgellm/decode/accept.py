"""Sample and match: how a verified tree becomes emitted tokens.

At each node the next token is drawn from the target distribution, with the history along the path, and the walk goes
on in the child that equals the draw. A draft decides only how far one step gets, never what is said, so this is
lossless for every sampling setting; for drafts that are not random themselves no scheme accepts more.

What is committed: with tokens t1 … tm emitted, the path holds the root and the nodes of t1 … t(m-1), so it is as long
as the tokens are. tm has not been processed by the model: it is the root of the next step, or, when the sequence ends
with it, it stays out of the slot. What must stay true: nothing is emitted after a token that ends the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgellm.decode.logprobs import TokenLogprob
from edgellm.decode.sampler import Draw, Sampler
from edgellm.decode.stop import Finish, StopRule
from edgellm.engine.base import Logits, TokenTree


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome of one step."""

    path: tuple[int, ...]  # nodes to commit, root first; as many as `tokens`
    tokens: tuple[int, ...]  # emitted: the accepted children, then the bonus token
    finish: Finish | None = None  # set when the last token ends the sequence
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each token, when asked for
    margins: tuple[float, ...] = ()  # one for each token, when asked for

    def first(self, count: int) -> Accepted:
        """The outcome cut after `count` tokens (a stop string ended there): the rest was never said."""
        if count >= len(self.tokens):
            return self
        return Accepted(self.path[:count], self.tokens[:count], None, self.logprobs[:count], self.margins[:count])


def accept_tree(tree: TokenTree, logits: Logits, sampler: Sampler, stop: StopRule) -> Accepted:
    """Walk a verified tree. The sampler has advanced over the root and advances over every emitted token.

    Args:
        tree: what was verified.
        logits: its rows, one for each node.
        sampler: of the sequence; `sampler.generated` counts the root when it was generated.
        stop: of the sequence; at least one token may still be emitted.
    """
    children: list[dict[int, int]] = [{} for _ in tree.tokens]
    for node in range(1, len(tree.tokens)):
        children[tree.parents[node]].setdefault(tree.tokens[node], node)
    path = [0]
    draws: list[Draw] = []
    while True:
        draw = sampler.draw(logits, path[-1])
        sampler.advance(draw.token)
        draws.append(draw)
        finish = stop.check(draw.token, sampler.generated)
        child = children[path[-1]].get(draw.token)
        if finish is not None or child is None:
            return _accepted(path, draws, finish)
        path.append(child)


def accept_row(logits: Logits, index: int, sampler: Sampler, stop: StopRule) -> Accepted:
    """The outcome of plain decoding or of the prompt's last row: one token. There is nothing to commit."""
    draw = sampler.draw(logits, index)
    sampler.advance(draw.token)
    return _accepted([0], [draw], stop.check(draw.token, sampler.generated))


def _accepted(path: list[int], draws: list[Draw], finish: Finish | None) -> Accepted:
    return Accepted(
        tuple(path),
        tuple(draw.token for draw in draws),
        finish,
        tuple(draw.logprob for draw in draws if draw.logprob is not None),
        tuple(draw.margin for draw in draws if draw.margin is not None),
    )
