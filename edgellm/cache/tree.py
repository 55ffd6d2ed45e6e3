"""The tree of cached token paths: nodes of up to one block, snapshots at exact offsets, and the search for a prefix.

What must stay true: a child starts where its full parent ends; only full nodes have children; no node's tokens are a
prefix of a sibling's; a snapshot at offset x sits in the node that holds token x - 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import BlockRef, SnapshotRef

Tokens = NDArray[np.int32]
SnapshotKind = Literal["turn", "periodic", "output", "shared"]
DEFAULT_PRIORITY = 35


@dataclass(slots=True)
class Retention:
    """Priority 0-100 until `expires` (clock seconds), then the default."""

    priority: int = DEFAULT_PRIORITY
    expires: float | None = None

    def effective(self, now: float) -> int:
        return DEFAULT_PRIORITY if self.expires is not None and now >= self.expires else self.priority


@dataclass(slots=True, eq=False)
class SnapshotEntry:
    ref: SnapshotRef
    offset: int
    kind: SnapshotKind
    node: Node
    used: float
    retention: Retention
    superseded: bool = False  # a deeper snapshot of the same conversation exists


@dataclass(slots=True, eq=False)
class Node:
    """One block of a path. The root of a salt has no tokens and no block."""

    parent: Node | None
    start: int
    tokens: Tokens
    block: BlockRef | None
    hash: str
    used: float = 0.0
    pins: int = 0
    retention: Retention = field(default_factory=Retention)
    children: dict[int, list[Node]] = field(default_factory=dict)  # by first token
    snapshots: dict[int, SnapshotEntry] = field(default_factory=dict)  # by absolute offset

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> list[Node]:
        """Nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def attach(self, child: Node) -> None:
        self.children.setdefault(int(child.tokens[0]), []).append(child)

    def detach(self, child: Node) -> None:
        first = int(child.tokens[0])
        self.children[first].remove(child)
        if not self.children[first]:
            del self.children[first]


@dataclass(frozen=True, slots=True)
class Match:
    """`length` tokens can be restored (0: none) from `entry`; `matched` tokens agree with a cached path."""

    length: int
    matched: int
    entry: SnapshotEntry | None


def path_hash(parent: str, tokens: Tokens) -> str:
    """Hash of a node, chained over its ancestors."""
    return hashlib.blake2b(parent.encode() + tokens.tobytes(), digest_size=16).hexdigest()


def common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if different.size else size


def search(root: Node, tokens: Tokens, block: int, limit: int) -> Match:
    """The deepest snapshot at an offset <= limit on any cached path that agrees with `tokens` up to it."""
    node, position, matched = root, 0, 0
    best: SnapshotEntry | None = None
    while position < len(tokens):
        window = tokens[position : position + block]
        follow: Node | None = None
        for child in node.children.get(int(window[0]), ()):
            agree = common(child.tokens, window)
            matched = max(matched, position + agree)
            for offset, entry in child.snapshots.items():
                if offset <= min(position + agree, limit) and (best is None or offset > best.offset):
                    best = entry
            if agree == block:
                follow = child
        if follow is None:
            break
        node, position = follow, position + block
    return Match(best.offset if best else 0, matched, best)


def walk(root: Node) -> Iterator[Node]:
    """All nodes below the root."""
    stack = [child for group in root.children.values() for child in group]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(child for group in node.children.values() for child in group)
