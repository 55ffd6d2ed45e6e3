"""The hybrid prefix cache: KV blocks, recurrent snapshots, what is kept and for how long.

A prompt that starts like an earlier one is restored up to a recurrent snapshot instead of being prefilled. How a
sequence uses it (one engine thread, `edgellm.runtime`):

    cache = PrefixCache(executor, block_budget_bytes=…, snapshot_budget_bytes=…, events=EventBus())
    lease = cache.acquire(prompt, salt=salt, limit=len(prompt) - 1)     # at least one token is always computed
    executor.restore(slot, lease.length, lease.blocks, lease.snapshot)  # length 0: resets the slot
    points = plan_snapshots(len(prompt), restored=lease.length, matched=lease.matched, stable_lengths=…,
                            kept_lengths=plan.kept_lengths)             # plan: RetentionPlan(len(prompt), ranges, …)
    for point in points:                                                # ascending; prefill is split there
        … advance the slot to point.offset …
        cache.store(lease, prompt, point.offset, slot=slot, snapshot=point.kind, retention=plan)
        prefixes.maybe_save(prompt, point.offset, salt=salt, kind=point.kind, priority=…)
    … advance to the end of the prompt, decode …
    if keep_after_generation(len(prompt), stable_lengths):
        committed = prompt + generated[…]                               # exactly the slot's committed tokens
        cache.store(lease, committed, len(committed), slot=slot, snapshot="output")
    cache.release(lease)                                                # always, also after abort

With a `PrefixStore` behind `--cache-dir`: `prefixes.load_all()` at a start, `prefixes.flush(1)` whenever the engine is
idle, `prefixes.close()` at shutdown.

A request that may not read the cache acquires with `limit=0`; one that may not write it does not call `store`, but
may call `lease.restored()` once the slot is restored, so that the snapshot need not be kept for it. A sequence that is
stopped midway just releases its lease: what was stored is true, whatever happens to the slot later.

Modules: `keys` token strings and path hashes; `tree` nodes, snapshots and the search; `prefix_cache` the cache;
`lease` a sequence's hold; `pool` what is held, counted and announced; `retention` how long and `eviction` what goes
first; `policy` where snapshots are taken; `events` what changed; `budgets` how many bytes; `persist` shared prefixes on
disk and `prefix_file` one of them; `tier` a second tier for dumps, `vault` where their bytes are, and `transfer` the
way there and back; `check` the invariants.
"""

from edgellm.cache.budgets import CacheBudgets, plan_budgets
from edgellm.cache.events import CacheEvent, Created, EventBus, Removed, Stored, Updated
from edgellm.cache.keys import TokenKey
from edgellm.cache.lease import Lease
from edgellm.cache.persist import LoadReport, PrefixStore
from edgellm.cache.policy import SnapshotKind, SnapshotPoint, keep_after_generation, plan_snapshots
from edgellm.cache.prefix_cache import Match, PrefixCache
from edgellm.cache.retention import RetentionPlan, TokenRange, check_ranges, default_ranges
from edgellm.cache.stats import CacheStats
from edgellm.cache.tier import Tier, TierStats
from edgellm.cache.transfer import Offloaded, Recalled, offload, recall

__all__ = [
    "CacheBudgets",
    "CacheEvent",
    "CacheStats",
    "Created",
    "EventBus",
    "Lease",
    "LoadReport",
    "Match",
    "Offloaded",
    "PrefixCache",
    "PrefixStore",
    "Recalled",
    "Removed",
    "RetentionPlan",
    "SnapshotKind",
    "SnapshotPoint",
    "Stored",
    "Tier",
    "TierStats",
    "TokenKey",
    "TokenRange",
    "Updated",
    "check_ranges",
    "default_ranges",
    "keep_after_generation",
    "offload",
    "plan_budgets",
    "plan_snapshots",
    "recall",
]
