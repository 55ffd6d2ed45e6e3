"""What a conversation finds in the cache, turn after turn and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgellm.cache import TokenRange
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.runtime.types import CacheParams

Open = Callable[..., Any]
PROMPT = tuple(range(10, 310))


def test_second_turn_restores_the_stable_part(open_rig: Open) -> None:
    rig = open_rig(speculation=SpeculationParams())
    assert rig.run(PROMPT, stable_lengths=(297,)).usage.cached_tokens == 0
    turn = rig.run((*PROMPT[:297], *range(500, 560)), stable_lengths=(350,))
    assert (turn.usage.cached_tokens, turn.usage.prefilled_tokens) == (297, 60)
    assert rig.engine.stats().prefilled_tokens == 360


def test_answer_is_restored_when_it_is_repeated(open_rig: Open) -> None:
    rig = open_rig(speculation=SpeculationParams())
    answer = rig.run(PROMPT, SamplingParams(max_tokens=20), stable_lengths=(250, 300)).token_ids
    turn = rig.run((*PROMPT, *answer, 7, 8, 9))
    assert turn.usage.cached_tokens == 300 + 19


def test_third_prompt_with_the_same_beginning_hits(open_rig: Open) -> None:
    rig = open_rig()
    cached = [
        rig.run((*PROMPT[:200], 900 + i, *range(40)), stable_lengths=(230,)).usage.cached_tokens for i in range(3)
    ]
    assert cached == [0, 0, 200]


def test_prompts_that_arrive_together_share_what_the_first_computes(open_rig: Open, gate: Any, read_all: Any) -> None:
    rig = open_rig(on_call=gate)
    held = gate.hold("advance")
    running = [rig.submit(PROMPT) for _ in range(4)]
    held.open()
    assert [read_all(generation).usage.cached_tokens for generation in running] == [0, 299, 299, 299]


def test_long_prefill_leaves_snapshots_on_its_way(open_rig: Open) -> None:
    rig = open_rig(max_tokens=20000)
    prompt = tuple(i % 1000 for i in range(18000))
    rig.run(prompt, stable_lengths=(17990,))
    assert rig.run((*prompt[:12000], 1, 2)).usage.cached_tokens == 8192


def test_cache_can_be_refused(open_rig: Open) -> None:
    rig = open_rig()
    rig.run(PROMPT, cache=CacheParams(write=False))
    assert rig.engine.stats().cache.snapshots == 0
    rig.run(PROMPT)
    assert rig.run(PROMPT, cache=CacheParams(read=False)).usage.cached_tokens == 0
    assert rig.run(PROMPT).usage.cached_tokens == 299
    assert rig.run(PROMPT, cache=CacheParams(salt="other")).usage.cached_tokens == 0


def test_no_budget_no_cache(open_rig: Open) -> None:
    rig = open_rig(block_budget=0)
    before = rig.run(PROMPT)
    assert rig.run(PROMPT).token_ids == before.token_ids
    stats = rig.engine.stats()
    assert stats.cached_tokens == stats.cache.blocks == stats.cache.snapshots == 0
    assert stats.prefill_chunks == 2  # no splits for snapshots that cannot be kept


def test_abort_in_mid_prefill_keeps_what_it_had_stored(open_rig: Open, gate: Any) -> None:
    rig = open_rig(on_call=gate, prefill_chunk=64)
    held = gate.hold("advance", 4)
    aborted = rig.submit(PROMPT, stable_lengths=(100, 290))
    held.wait()
    aborted.cancel()
    held.open()
    list(aborted)
    assert rig.run(PROMPT).usage.cached_tokens == 100


def test_shared_prefix_survives_a_restart(open_rig: Open, tmp_path: Path) -> None:
    prompts = [(*PROMPT[:200], 900 + i, *range(40)) for i in range(4)]
    first = open_rig(cache_dir=tmp_path)
    expected = [first.run(prompt).token_ids for prompt in prompts]
    first.engine.close()
    second = open_rig(cache_dir=tmp_path)
    again = [second.run(prompt) for prompt in prompts]
    assert [result.token_ids for result in again] == expected
    assert again[0].usage.cached_tokens == 200
    second.settle()
    second.engine.close()
    other_weights = open_rig(cache_dir=tmp_path, fingerprint="other")
    assert other_weights.run(prompts[0]).usage.cached_tokens == 0


def test_priority_is_kept_across_restarts_too(open_rig: Open, tmp_path: Path) -> None:
    first = open_rig(cache_dir=tmp_path)
    first.run(PROMPT, cache=CacheParams(ranges=(TokenRange(0, None, 90),)), stable_lengths=(280,))
    first.settle()
    first.engine.close()
    assert open_rig(cache_dir=tmp_path).run(PROMPT).usage.cached_tokens == 280
