"""What the engine has done and what it holds, for metrics, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgellm.cache import CacheStats, TierStats


@dataclass(slots=True)
class Totals:
    """Counters since start. Written by the engine thread only."""

    prompt_tokens: int = 0  # of requests that began prefill
    cached_tokens: int = 0  # of those, restored
    prefilled_tokens: int = 0  # computed
    generated_tokens: int = 0
    drafted_tokens: int = 0  # draft nodes verified, roots excluded
    accepted_tokens: int = 0
    steps: int = 0  # decode steps: batches of single tokens, and verified trees
    verify_steps: int = 0  # of those, trees
    prefill_chunks: int = 0
    faults: int = 0  # executor calls that raised
    host_s: float = 0.0  # of the engine thread, outside executor calls
    finished: dict[str, int] = field(default_factory=dict)  # by finish reason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A picture of the engine. Seconds and tokens are totals since start, bytes are what is held now."""

    healthy: bool
    error: str | None  # why the engine is dead
    queued: int
    running: int
    slots: int
    slots_free: int
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    steps: int
    verify_steps: int
    prefill_chunks: int
    faults: int
    finished: Mapping[str, int]
    executor_s: float  # inside executor calls
    host_s: float  # everything else that the engine thread did
    cache: CacheStats
    tier: TierStats
    memory: Mapping[str, int]  # Executor.memory(), as of the last request that ended
