"""The structural invariants of the tree, checked one by one. For tests and for hunting a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgellm.cache.keys import WIDTH, path_hash
from edgellm.cache.retention import Retention
from edgellm.cache.tree import Node, Snapshot


@dataclass(frozen=True, slots=True)
class TreeCounts:
    blocks: int
    block_retentions: Counter[Retention]
    snapshots: set[Snapshot]
    pinned: Counter[Node]


def check_tree(roots: Mapping[bytes, Node], leaves: Collection[Node], block_tokens: int) -> TreeCounts:
    """Count what is there. Raises AssertionError naming the first invariant that is broken."""
    blocks: set[int] = set()
    retentions: Counter[Retention] = Counter()
    refs: set[int] = set()
    snapshots: set[Snapshot] = set()
    pinned: Counter[Node] = Counter()
    found_leaves: set[Node] = set()
    for namespace, root in roots.items():
        assert root.hash == namespace
        assert root.parent is None
        assert root.block is None
        assert root.nodes or root.pins, "an empty root is kept"
        stack = [root]
        while stack:
            node = stack.pop()
            assert node.pins >= 0
            if node.pins:
                pinned[node] = node.pins
            if node.parent is not None:
                _check_block(node, block_tokens)
                assert node.block is not None
                assert node.block not in blocks, "a block reference appears twice"
                blocks.add(node.block)
                retentions[node.retention] += 1
                if not node.nodes:
                    found_leaves.add(node)
            _check_children(node)
            for data, snapshot in node.snapshots.items():
                _check_snapshot(node, data, snapshot, block_tokens)
                assert snapshot.ref not in refs, "a snapshot reference appears twice"
                refs.add(snapshot.ref)
                snapshots.add(snapshot)
            stack.extend(node.nodes)
    assert found_leaves == set(leaves), "the set of leaves is wrong"
    return TreeCounts(len(blocks), retentions, snapshots, pinned)


def _check_block(node: Node, block_tokens: int) -> None:
    parent = node.parent
    assert parent is not None
    assert node.start == parent.end
    assert node.start % block_tokens == 0
    assert 0 < len(node.data) <= block_tokens * WIDTH
    assert len(node.data) % WIDTH == 0
    assert not node.nodes or len(node.data) == block_tokens * WIDTH, "a partial block has children"
    assert node.hash == path_hash(parent.hash, node.data)
    assert all(snapshot.carrier is node and snapshot.base is parent for snapshot in node.carried)


def _check_children(node: Node) -> None:
    assert [child.data for child in node.nodes] == node.keys
    for first, second in zip(node.keys, node.keys[1:], strict=False):
        assert first < second, "siblings are out of order"
        assert not second.startswith(first), "a sibling is a prefix of another"
    assert all(child.parent is node for child in node.nodes)


def _check_snapshot(base: Node, data: bytes, snapshot: Snapshot, block_tokens: int) -> None:
    assert snapshot.base is base
    assert snapshot.data == data
    assert 0 < len(data) <= block_tokens * WIDTH
    assert snapshot.carrier in base.nodes
    assert snapshot.carrier.data.startswith(data), "a snapshot's carrier has other tokens"
    assert snapshot in snapshot.carrier.carried
    assert snapshot.pins >= 0
