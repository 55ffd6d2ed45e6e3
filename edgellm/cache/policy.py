"""Where recurrent snapshots are taken. Prefill is split at these offsets, so each one costs at most a short chunk.

Owns the rules of the design and nothing else: pure functions of lengths. What must stay true: every offset lies
strictly after what was restored and before the end of the prompt, because at least one token is always computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

SnapshotKind = Literal["stable", "shared", "interval", "output"]

MIN_GAP = 64  # tokens: nearer to a restorable point than this, a snapshot is not worth its bytes
EVERY = 8192  # tokens between the snapshots of a long prefill


class SnapshotPoint(NamedTuple):
    """`offset` tokens from the start of the prompt, and the rule that asked for it."""

    offset: int
    kind: SnapshotKind


def plan_snapshots(
    prompt_len: int,
    *,
    restored: int,
    matched: int,
    stable_lengths: Sequence[int] | None,
    kept_lengths: Sequence[int] = (),
    every: int = EVERY,
    min_gap: int = MIN_GAP,
) -> tuple[SnapshotPoint, ...]:
    """Points in (restored, prompt_len) at which a prefill takes a snapshot, ascending.

    Rule 1, "stable": the ends of what the conversation's next prompt may repeat. Rule 2, "shared": where the prompt
    leaves a cached path, if that is at least `min_gap` tokens beyond what could be restored: the third prompt with the
    same beginning then hits. Rule 4, "interval": multiples of `every` before the stable end, so that an edit deep in
    the history costs little; those nearer than `min_gap` to another point or to what was restored are left out.
    Rule 5, "shared" too: where tokens end that are to be kept longer than others. Without a state there they would be
    kept in vain once the conversation behind them is gone.

    A stable length of the whole prompt (the answer is repeated too) is served by rule 3. Before the answer exists its
    point would be `prompt_len - 1`, which the same prompt sent again can use; it is left out when another stable
    length is nearer to it than `min_gap`.

    Args:
        prompt_len: tokens of the prompt.
        restored: tokens restored from the cache (`Lease.length`).
        matched: tokens in common with a cached path (`Lease.matched`).
        stable_lengths: leading prompt tokens that the next prompt may repeat; None: unknown, the whole prompt counts.
        kept_lengths: where ranges of a priority above the default end.
        every: tokens between rule-4 points; 0 turns the rule off.
        min_gap: tokens, at least 1.
    """
    last = prompt_len - 1
    lengths = [prompt_len] if stable_lengths is None else sorted(stable_lengths)
    points: dict[int, SnapshotKind] = {length: "stable" for length in lengths if restored < length <= last}
    if lengths and lengths[-1] > last > restored and all(last - other >= min_gap for other in (*points, restored)):
        points[last] = "stable"
    kept = [length for length in kept_lengths if restored + min_gap <= length <= last]
    points |= {length: "shared" for length in kept if length not in points}
    if restored + min_gap <= matched < prompt_len and all(abs(matched - length) >= min_gap for length in kept):
        points[matched] = "shared"
    if every > 0:
        for offset in range((restored // every + 1) * every, max(points, default=0), every):
            if all(abs(offset - other) >= min_gap for other in (restored, *points)):
                points[offset] = "interval"
    return tuple(SnapshotPoint(offset, points[offset]) for offset in sorted(points))


def keep_after_generation(prompt_len: int, stable_lengths: Sequence[int] | None) -> bool:
    """Rule 3: whether the state after decoding can be reused.

    Only if the next prompt may repeat this one whole, answer included. A template that renders a past turn
    differently (an empty thinking block dropped, say) shows in stable lengths short of the prompt.
    """
    return stable_lengths is None or max(stable_lengths, default=0) >= prompt_len
