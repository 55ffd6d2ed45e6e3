"""Where recurrent snapshots are taken while a prompt is prefilled. Prefill is split at these offsets."""

from __future__ import annotations

MIN_GAP = 16  # tokens: a snapshot closer than this to a better one is not worth its bytes


def plan_snapshots(
    prompt_length: int, *, restored: int, matched: int, stable_length: int, every: int
) -> tuple[tuple[int, bool], ...]:
    """Offsets in (restored, prompt_length) at which to take a snapshot, ascending, each with "is shared".

    Rule 1: at the stable end of the prompt. Rule 2: where the prompt leaves a cached path deeper than what could be
    restored (several prompts share these tokens: such a snapshot is marked shared). Rule 4: every `every` tokens of a
    long prefill, so that an edit deep in the history costs little (0 turns it off).

    Args:
        restored: tokens restored from the cache.
        matched: tokens that agree with a cached path, restored or not.
        stable_length: tokens that the conversation's next prompt will repeat.
    """
    end = min(stable_length, prompt_length - 1)
    chosen: dict[int, bool] = {}
    if matched - restored >= MIN_GAP and matched < prompt_length:
        chosen[matched] = True
    if end > restored:
        chosen.setdefault(end, False)
    if every:
        for offset in range((restored // every + 1) * every, prompt_length, every):
            if all(abs(offset - other) >= every // 2 for other in chosen):
                chosen[offset] = False
    return tuple(sorted(chosen.items()))


def keep_after_generation(prompt_length: int, stable_length: int) -> bool:
    """Rule 3: whether the state after decoding can be reused.

    It can when the next prompt repeats this one whole: a template that renders the turn differently in history (an
    empty think block dropped, say) shows in a stable length short of the prompt.
    """
    return stable_length >= prompt_length
