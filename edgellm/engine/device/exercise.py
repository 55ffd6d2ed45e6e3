"""Every program of one slot once: what cannot run on this GPU fails when a model is opened, not in a request.

On a `SymbolicDevice` the same calls say what a model will need.
"""

from __future__ import annotations

from edgellm.engine.base import Chunk, DraftNodes, Executor, TokenTree


def exercise(executor: Executor) -> None:
    """Prefill, decode, draft, verify, commit, publish, keep and restore in the last slot, which is left empty.

    Blocks are published only where there is room for them.

    Raises:
        ExecutionError: something of it does not run here.
    """
    info = executor.info
    slot = info.slots - 1
    executor.reset(slot)
    longest = min(info.max_chunk, info.max_tokens - info.max_tree - 2)
    sizes = [longest, 1] if longest > 1 else [1]
    for _ in range(2):  # both capsules in turn
        for size in sizes:
            if executor.length(slot) + size + info.max_tree < info.max_tokens:
                executor.advance([Chunk(slot, [0] * size, True)])
        if info.draft_top_k:
            executor.draft([DraftNodes(slot, [0], [-1])])
            executor.draft([DraftNodes(slot, [0, 0], [0, 0])])
        if info.max_tree:
            nodes = min(info.max_tree, info.max_tokens - executor.length(slot))
            executor.verify(TokenTree(slot, [0] * nodes, [-1, *[0] * (nodes - 1)]))
            executor.commit(slot, [0])
        _restore(executor, slot)
        executor.reset(slot)


def _restore(executor: Executor, slot: int) -> None:
    info = executor.info
    length, step = executor.length(slot), info.block_tokens
    starts = range(0, length, step)
    if info.max_snapshots == 0:
        return
    kept = executor.snapshot(slot)
    if info.max_blocks is None or info.max_blocks >= len(starts):
        blocks = [executor.publish(slot, at, min(at + step, length)) for at in starts]
        executor.restore(slot, length, blocks, kept)
        for ref in blocks:
            executor.free_block(ref)
    executor.free_snapshot(kept)
