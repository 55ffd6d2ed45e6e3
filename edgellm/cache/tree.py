"""The tree of cached token paths, and the search for the best prefix in it.

A node is one block. Its children are kept sorted by their tokens, so that a thousand prompts that part at one point
cost a bisection. A snapshot at offset x belongs to the node above the block that holds token x - 1 (`base`), under the
tokens from there to x, because every child of `base` that starts with those tokens can restore it; one of them is its
`carrier`.

What must stay true: a child starts where its full parent ends; only full nodes (and a salt's root) have children; no
node's tokens are a prefix of a sibling's; a snapshot's carrier is a child of its base and starts with its tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from edgellm.cache.keys import WIDTH, TokenKey, common_tokens, path_hash
from edgellm.cache.policy import SnapshotKind
from edgellm.cache.retention import DEFAULT, Retention
from edgellm.engine.base import BlockRef, SnapshotRef


class Node:
    """One block of a path, or the root of a salt (no tokens, no block, no parent)."""

    __slots__ = (
        "block",
        "carried",
        "data",
        "hash",
        "keys",
        "nodes",
        "parent",
        "pins",
        "retention",
        "snapshots",
        "start",
        "used",
    )

    def __init__(self, parent: Node | None, data: bytes, block: BlockRef | None, name: bytes) -> None:
        self.parent = parent
        self.data = data  # packed tokens
        self.block = block
        self.hash = name
        self.start: int = 0 if parent is None else parent.end
        self.keys: list[bytes] = []  # the children's `data`, sorted
        self.nodes: list[Node] = []  # the children, in that order
        self.snapshots: dict[bytes, Snapshot] = {}  # offsets inside the children's blocks, by the tokens to there
        self.carried: set[Snapshot] = set()  # those of the parent's snapshots that this node carries
        self.pins = 0
        self.retention = DEFAULT
        self.used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data) // WIDTH

    def path(self) -> list[Node]:
        """Nodes from below the root down to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def add(self, child: Node) -> None:
        index = bisect_left(self.keys, child.data)
        self.keys.insert(index, child.data)
        self.nodes.insert(index, child)

    def remove(self, child: Node) -> None:
        index = bisect_left(self.keys, child.data)
        assert self.nodes[index] is child
        del self.keys[index], self.nodes[index]

    def covering(self, data: bytes) -> Node | None:
        """A child whose tokens start with `data`."""
        index = bisect_left(self.keys, data)
        return self.nodes[index] if index < len(self.keys) and self.keys[index].startswith(data) else None

    def shorter(self, data: bytes) -> Node | None:
        """The child whose tokens are a proper prefix of `data`. It sorts right before it, as no child extends it."""
        index = bisect_left(self.keys, data) - 1
        return self.nodes[index] if index >= 0 and data.startswith(self.keys[index]) else None

    def agreement(self, data: bytes) -> int:
        """Most tokens that any child has in common with `data`: one of the two neighbours in the order has them."""
        index = bisect_left(self.keys, data)
        return max((common_tokens(key, data) for key in self.keys[max(index - 1, 0) : index + 1]), default=0)

    def starting_with(self, data: bytes) -> tuple[int, int]:
        """Range of the children whose tokens start with `data`."""
        low = high = bisect_left(self.keys, data)
        while high < len(self.keys) and self.keys[high].startswith(data):
            high += 1
        return low, high

    def snapshots_on(self, data: bytes) -> list[Snapshot]:
        """Snapshots inside the children's blocks whose tokens begin `data`, in any order."""
        return [snapshot for tokens, snapshot in self.snapshots.items() if data.startswith(tokens)]

    def longest_snapshot(self, data: bytes) -> Snapshot | None:
        """The deepest snapshot inside the children's blocks whose tokens agree with `data`."""
        for size in range(len(data), 0, -WIDTH):
            found = self.snapshots.get(data[:size])
            if found is not None:
                return found
        return None


@dataclass(slots=True, eq=False)
class Snapshot:
    """A recurrent state at `offset` tokens."""

    ref: SnapshotRef
    kind: SnapshotKind
    base: Node
    data: bytes  # tokens from base.end to the offset
    carrier: Node
    retention: Retention
    used: int
    pins: int = 0

    @property
    def offset(self) -> int:
        return self.base.end + len(self.data) // WIDTH

    @property
    def hash(self) -> bytes:
        return path_hash(self.base.hash, self.data)


@dataclass(frozen=True, slots=True)
class Found:
    """`matched` tokens agree with a cached path; `snapshot` is the deepest one on such a path, if any."""

    matched: int
    snapshot: Snapshot | None


def search(root: Node, key: TokenKey, block_tokens: int) -> Found:
    """The longest cached path that agrees with `key`, and the deepest snapshot that agrees with it."""
    width = block_tokens * WIDTH
    data, position = key.data, 0
    above: list[Node] = []  # nodes whose children are compared with data[position:]
    node = root
    while True:
        above.append(node)
        part = data[position : position + width]
        child = node.covering(part) if len(part) == width else None
        if child is None:
            break
        node, position = child, position + width
    matched = position // WIDTH + node.agreement(part)
    for node in reversed(above):
        if node.snapshots:
            found = node.longest_snapshot(data[node.end * WIDTH : node.end * WIDTH + width])
            if found is not None:
                return Found(matched, found)
    return Found(matched, None)


def walk(root: Node) -> Iterator[Node]:
    """All nodes below `root`, parents first."""
    stack = list(root.nodes)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.nodes)
