"""What goes first when memory is short. Chooses victims and changes nothing.

What must stay true: a block goes only when it is a leaf that no lease holds, so everything above a live path stays;
a snapshot goes only when no lease is about to restore it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from edgellm.cache.keys import WIDTH, common_tokens
from edgellm.cache.tree import Node, Snapshot


def block_victims(leaves: Collection[Node], now: float) -> Iterator[Node]:
    """Leaves in the order they should go; the caller removes each one before it asks for the next.

    Order: blocks that no snapshot makes restorable, then the lowest priority, then the least recently used. A block
    counts with the best of its own and its snapshots' retention. When a path's last block goes, the one above follows
    as a leaf in its own right.
    """
    heap = [(_block_value(node, now), index, node) for index, node in enumerate(leaves) if not node.pins]
    heapq.heapify(heap)
    ties = len(heap)
    while heap:
        value, tie, node = heapq.heappop(heap)
        current = _block_value(node, now)
        if current != value:  # a sibling went and left its snapshot here
            heapq.heappush(heap, (current, tie, node))
            continue
        parent = node.parent
        assert parent is not None
        yield node
        if parent.parent is not None and not parent.nodes and not parent.pins:
            ties += 1
            heapq.heappush(heap, (_block_value(parent, now), ties, parent))


def _block_value(node: Node, now: float) -> tuple[bool, int, int]:
    parent = node.parent
    assert parent is not None
    needed = False
    priority, used = node.retention.at(now), node.used
    for snapshot in node.carried:
        low, high = parent.starting_with(snapshot.data)
        if high - low == 1:  # nobody else could carry it
            needed = True
            priority = max(priority, snapshot.retention.at(now))
            used = max(used, snapshot.used)
    return needed, priority, used


@dataclass(frozen=True, slots=True)
class Coming:
    """Where a snapshot is about to be added: the tokens `data` after `base`."""

    base: Node
    data: bytes


def snapshot_victim(snapshots: Collection[Snapshot], coming: Coming, now: float) -> Snapshot | None:
    """The snapshot to give up for the coming one, or None when leases hold all of them.

    Order: the lowest priority; within it those that a deeper one supersedes, the coming one included (so a
    conversation's newest point takes the place of its last one); then the least recently used.
    """
    free = [snapshot for snapshot in snapshots if not snapshot.pins]
    if not free:
        return None
    lowest = min(snapshot.retention.at(now) for snapshot in free)
    level = sorted((s for s in free if s.retention.at(now) == lowest), key=lambda snapshot: snapshot.used)
    return next((snapshot for snapshot in level if superseded(snapshot, coming)), level[0])


def superseded(snapshot: Snapshot, coming: Coming | None = None) -> bool:
    """Whether every cached path through this snapshot goes on to a deeper one, with no branch between the two.

    Then only a prompt that edits the tokens between them would use it. A snapshot where paths part is never
    superseded: each of its branches may be continued or joined by another one.
    """
    base, data = snapshot.base, snapshot.data
    while True:
        low, high = base.starting_with(data)
        if low == high:
            return False
        first, last = base.keys[low], base.keys[high - 1]
        shared = first[: common_tokens(first, last) * WIDTH]  # sorted: what these two share, all between them share
        deeper = [*base.snapshots, coming.data] if coming is not None and coming.base is base else base.snapshots
        if any(len(data) < len(other) and shared.startswith(other) for other in deeper):
            return True
        if high - low > 1:
            return False
        base, data = base.nodes[low], b""
