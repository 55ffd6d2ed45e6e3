"""Where recurrent snapshots are taken while a prompt is prefilled. Prefill is split at these offsets."""

from __future__ import annotations

from collections.abc import Sequence

MIN_GAP = 16  # tokens: a snapshot closer than this to a better one is not worth its bytes


def plan_snapshots(
    prompt_length: int, *, restored: int, matched: int, stable_lengths: Sequence[int], every: int
) -> tuple[tuple[int, bool], ...]:
    """Offsets in (restored, prompt_length) at which to take a snapshot, ascending, each with "is shared".

    Rule 1: at the stable end of the prompt. Rule 2: where the prompt leaves a cached path deeper than what could be
    restored (several prompts share these tokens: such a snapshot is marked shared). Rule 4: every `every` tokens of a
    long prefill, so that an edit deep in the history costs little (0 turns it off).

    Args:
        restored: tokens restored from the cache.
        matched: tokens that agree with a cached path, restored or not.
        stable_lengths: numbers of tokens that the conversation's next prompt may repeat.
    """
    chosen: dict[int, bool] = {}
    if matched - restored >= MIN_GAP and matched < prompt_length:
        chosen[matched] = True
    for length in stable_lengths:
        if min(length, prompt_length - 1) > restored:
            chosen.setdefault(min(length, prompt_length - 1), False)
    if every:
        for offset in range((restored // every + 1) * every, prompt_length, every):
            if all(abs(offset - other) >= every // 2 for other in chosen):
                chosen[offset] = False
    return tuple(sorted(chosen.items()))


def keep_after_generation(prompt_length: int, stable_lengths: Sequence[int]) -> bool:
    """Rule 3: whether the state after decoding can be reused.

    It can when the next prompt may repeat this one whole: a template that renders the turn differently in history (an
    empty think block dropped, say) shows in stable lengths short of the prompt.
    """
    return max(stable_lengths) >= prompt_length
