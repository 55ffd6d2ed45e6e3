"""Preconditions of the executor contract that do not depend on the executor. Each raises ValueError.

They run before anything is changed: a row or a token out of range would make a kernel write outside its buffers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import Chunk, DraftNodes, ExecutorInfo, TokenTree


def check_tokens(info: ExecutorInfo, tokens: Sequence[int] | NDArray[np.int64]) -> None:
    """Token ids are in the vocabulary."""
    low, high = min(tokens), max(tokens)
    if low < 0 or high >= info.vocab_size:
        raise ValueError(f"token {low if low < 0 else high} is outside the vocabulary of {info.vocab_size}")


def check_chunks(info: ExecutorInfo, batch: Sequence[Chunk], lengths: Sequence[int]) -> None:
    """The chunks of one advance; `lengths[i]` is the length of the slot of chunk i."""
    if not 1 <= len(batch) <= info.max_batch:
        raise ValueError(f"advance of {len(batch)} chunks: from 1 to {info.max_batch}")
    if len({chunk.slot for chunk in batch}) != len(batch):
        raise ValueError("a slot appears twice in one advance")
    most = info.max_chunk if len(batch) == 1 else 1
    for chunk, length in zip(batch, lengths, strict=True):
        size, room = len(chunk.tokens), info.max_tokens - length
        if not 1 <= size <= min(most, room):
            raise ValueError(f"chunk of {size} tokens in slot {chunk.slot}: at most {most}, and room for {room}")
        check_tokens(info, chunk.tokens)


def check_tree(info: ExecutorInfo, tree: TokenTree, length: int) -> None:
    """A tree to verify in a slot of `length` tokens."""
    size = len(tree.tokens)
    if not 1 <= size <= info.max_tree:
        raise ValueError(f"a tree of {size} nodes: from 1 to {info.max_tree}")
    if len(tree.parents) != size or tree.parents[0] != -1:
        raise ValueError("a tree has one parent per token, and -1 for the root")
    depths = [1]
    for node in range(1, size):
        if not 0 <= tree.parents[node] < node:
            raise ValueError(f"node {node} comes before its parent {tree.parents[node]}")
        depths.append(depths[tree.parents[node]] + 1)
    if max(depths) > info.max_tokens - length:
        raise ValueError(f"a tree of depth {max(depths)}, room for {info.max_tokens - length} tokens")
    check_tokens(info, tree.tokens)


def check_path(tree: TokenTree, path: Sequence[int]) -> None:
    """A path to commit goes down from the root."""
    steps = itertools.pairwise(path)
    if not path or path[0] != 0 or not all(0 < b < len(tree.parents) and tree.parents[b] == a for a, b in steps):
        raise ValueError(f"path {list(path)} does not go down the tree {list(tree.parents)} from its root")


def check_restore(info: ExecutorInfo, length: int, kept: int | None, tokens: Sequence[int]) -> None:
    """A restore of `length` >= 1 tokens from blocks of `tokens` tokens each and a snapshot of `kept` ones."""
    if not 0 < length <= info.max_tokens:
        raise ValueError(f"restore of {length} tokens into a slot of {info.max_tokens}")
    if kept != length:
        raise ValueError(f"restore of {length} tokens needs a snapshot of as many, not {kept}")
    step = info.block_tokens
    if not tokens or (len(tokens) - 1) * step + tokens[-1] < length or any(count < step for count in tokens[:-1]):
        raise ValueError(f"the blocks do not cover {length} tokens without a gap")


def check_block(info: ExecutorInfo, length: int, start: int, end: int) -> None:
    """Tokens [start, end) of `length` committed ones are a block."""
    step = info.block_tokens
    if start < 0 or start % step or not start < end <= min(start + step, length):
        raise ValueError(f"tokens [{start}, {end}) are not a block of the {length} committed ones")


def check_draft(info: ExecutorInfo, nodes: DraftNodes, length: int) -> None:
    """Draft nodes for a slot of `length` tokens."""
    check_tokens(info, nodes.tokens)
    if not length or len(nodes.parents) != len(nodes.tokens):
        raise ValueError(f"draft of {len(nodes.tokens)} nodes in slot {nodes.slot} with {length} tokens")
