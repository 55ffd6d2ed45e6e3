"""Offload and recall: what goes, what stays, and what the cache does meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from edgellm.cache import EventBus, Removed, Stored, Tier, TokenRange, offload, recall
from edgellm.errors import ConfigError

BLOCK = 4


def seq(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


A, B, HEAD = seq(1000, 16), seq(2000, 16), seq(0, 8)


def run(transfer):
    """All of a transfer at once; its result."""
    while True:
        try:
            next(transfer)
        except StopIteration as end:
            return end.value


@pytest.fixture(params=["memory", "files"])
def make_tier(request, clock, tmp_path):
    tiers = []

    def make(engine, budget: int = 1 << 20) -> Tier:
        folder = None if request.param == "memory" else tmp_path
        tiers.append(Tier(engine.executor.info, budget_bytes=budget, directory=folder, clock=clock))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.check()
        tier.close()


def offsets(engine, tokens) -> list[int]:
    """Where the cache has snapshots on the path of `tokens`."""
    engine.cache.check()
    return [n for n in range(1, len(tokens) + 1) if engine.cache.find(tokens[:n]) is not None]


def test_a_path_goes_whole_and_comes_back_whole(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(A, answer=(1, 2), every=5)
    before = offsets(engine, (*A, 1, 2))
    gone = run(offload(engine.cache, tier, (*A, 1, 2)))
    assert (gone.stored, gone.tokens, gone.freed_bytes) == (True, 18, 5 * 10 + len(before) * 100)
    assert gone.bytes == tier.stats().bytes == tier.stats().offloaded_bytes
    assert not engine.executor.blocks
    assert not engine.executor.snapshots
    back = run(recall(engine.cache, tier, (*A, 1, 2, 3)))
    assert (back.tokens, back.recalled_tokens, back.bytes) == (18, 18, gone.bytes)
    assert offsets(engine, (*A, 1, 2)) == before
    assert engine.turn((*A, 1, 2, 3)) == 1


def test_offloading_again_writes_only_what_is_new(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(A)
    first = run(offload(engine.cache, tier, A))
    run(recall(engine.cache, tier, A))
    assert run(offload(engine.cache, tier, A)).bytes == 0
    run(recall(engine.cache, tier, A))
    engine.turn((*A, *B))
    second = run(offload(engine.cache, tier, (*A, *B)))
    assert second.tokens == 31
    assert (tier.stats().blocks, tier.stats().snapshots) == (8, 2)
    assert second.bytes < tier.stats().bytes < first.bytes + second.bytes  # the partial block was replaced
    assert engine.cache.stats().blocks == 0


def test_what_others_share_or_hold_stays(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(HEAD + A)
    engine.turn(HEAD + B)
    gone = run(offload(engine.cache, tier, HEAD + A))
    assert gone.tokens == 23
    assert gone.freed_bytes == 4 * 10 + 100  # the head has B below it, and the snapshot at its end
    assert engine.cache.match(HEAD + A).length == 8
    assert engine.cache.match(HEAD + B).length == 23
    live = engine.start(HEAD + B)
    held = run(offload(engine.cache, tier, HEAD + B))
    assert (held.stored, held.freed_bytes) == (True, 0)
    assert live.lease.length == 23
    live.end()
    assert run(offload(engine.cache, tier, HEAD + B)).freed_bytes == 6 * 10 + 2 * 100
    assert tier.stats().blocks == 2 + 4 + 4  # the shared blocks are there once


def test_what_is_retained_above_the_default_stays(make_engine, make_tier, clock) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    live = engine.start(HEAD + A, ranges=(TokenRange(0, 8, 90, 10.0),))
    live.restore()
    live.store(HEAD + A, 8, "shared")
    live.store(HEAD + A, 23, "stable")
    live.end()
    assert run(offload(engine.cache, tier, HEAD + A)).freed_bytes == 4 * 10 + 100
    assert engine.cache.match(HEAD + B).length == 8
    clock.now = 10.0
    assert run(offload(engine.cache, tier, HEAD + A)).freed_bytes == 2 * 10 + 100


def test_retention_comes_back(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(A, priority=20)
    run(offload(engine.cache, tier, A))
    run(recall(engine.cache, tier, A))
    stats = engine.cache.stats()
    assert (stats.block_bytes_by_priority, stats.snapshot_bytes_by_priority) == ({"20": 40}, {"20": 100})


def test_salts_stay_apart(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(A, salt="x")
    assert run(offload(engine.cache, tier, A)).tokens == 0
    assert run(offload(engine.cache, tier, A, salt="x")).tokens == 15
    assert run(recall(engine.cache, tier, A)).tokens == 0
    assert run(recall(engine.cache, tier, A, salt="x")).tokens == 15


def test_without_room_the_cache_stays_as_it_was(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    engine.turn(A)
    for budget in (0, 100, 150):  # the last one passes the estimate, not the dumps
        tier = make_tier(engine, budget)
        refused = run(offload(engine.cache, tier, A))
        assert (refused.stored, refused.freed_bytes) == (False, 0)
        assert tier.stats().refused == 1
        assert engine.cache.match(A).length == 15
        assert run(recall(engine.cache, tier, A)).tokens == 15


def test_a_full_disk_refuses(make_engine, clock, tmp_path, monkeypatch) -> None:
    engine = make_engine(block=BLOCK)
    tier = Tier(engine.executor.info, budget_bytes=1 << 20, directory=tmp_path, clock=clock)
    engine.turn(A)
    real = Path.write_bytes

    def full(self, data):
        real(self, data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert not run(offload(engine.cache, tier, A)).stored
    assert engine.cache.match(A).length == 15
    assert tier.stats().bytes == 0
    assert list(tmp_path.glob("*/*.kv")) == []
    tier.close()


def test_on_a_disk_smaller_than_the_budget_the_oldest_path_gives_way(make_engine, clock, tmp_path, monkeypatch) -> None:
    engine = make_engine(block=BLOCK)
    tier = Tier(engine.executor.info, budget_bytes=1 << 20, directory=tmp_path, clock=clock)
    real, room = Path.write_bytes, 400

    def write(self, data):
        if sum(file.stat().st_size for file in tmp_path.glob("*/*.kv")) + len(data) > room:
            raise OSError(28, "No space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    for start in range(1000, 9000, 1000):
        engine.turn(seq(start, 16))
        assert run(offload(engine.cache, tier, seq(start, 16))).stored
        tier.check()
    assert tier.stats().evicted_blocks > 0
    assert run(recall(engine.cache, tier, seq(8000, 16))).tokens == 15
    tier.close()


def test_the_oldest_path_gives_way(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine, 800)
    sizes = []
    for start in (1000, 2000, 3000):
        prompt = seq(start, 16)
        engine.turn(prompt)
        sizes.append(run(offload(engine.cache, tier, prompt)).bytes)
    assert sum(sizes[1:]) <= 800 < sum(sizes)
    assert tier.stats().evicted_blocks > 0
    assert run(recall(engine.cache, tier, seq(1000, 16))).tokens == 0
    for start in (2000, 3000):
        assert run(recall(engine.cache, tier, seq(start, 16))).tokens == 15


def test_what_the_tier_has_of_a_path_stays_while_the_rest_comes(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine, 760)
    for prompt in (A, B):
        engine.turn(prompt)
        run(offload(engine.cache, tier, prompt))
    engine.turn(A, every=8)  # one more snapshot, and A is the older path
    assert 0 < run(offload(engine.cache, tier, A)).bytes < 100
    assert tier.stats().evicted_blocks == 1


def test_recall_evicts_others_but_not_what_is_held(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK, blocks=8, snapshots=2)
    tier = make_tier(engine)
    engine.turn(A)
    run(offload(engine.cache, tier, A))
    engine.turn(B)
    engine.turn(seq(3000, 16))
    live = engine.start(B)
    assert run(recall(engine.cache, tier, A)).tokens == 15
    assert engine.cache.match(seq(3000, 16)).length == 0
    live.end()
    run(offload(engine.cache, tier, A))
    held = [engine.start(B), engine.start(seq(4000, 16))]
    held[1].restore()
    held[1].store(seq(4000, 16), 16, None)
    assert run(recall(engine.cache, tier, A)).tokens == 0  # there is no room beside what is held
    assert engine.cache.match(B).length == 15
    for one in held:
        one.end()


def test_a_shallower_point_comes_back_when_the_deepest_does_not_fit(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK, blocks=8)
    tier = make_tier(engine)
    engine.turn(A + B[:8], every=8)
    assert run(offload(engine.cache, tier, A + B[:8])).tokens == 23
    live = engine.start(seq(3000, 16))
    live.restore()
    live.store(seq(3000, 16), 16, None)
    assert run(recall(engine.cache, tier, A + B[:8])).tokens == 16
    live.end()


def test_earlier_snapshots_come_back_only_where_there_is_room(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK, snapshots=4)
    tier = make_tier(engine)
    engine.turn(A, every=4, min_gap=1)
    assert offsets(engine, A) == [4, 8, 12, 15]
    run(offload(engine.cache, tier, A))
    engine.turn(B)
    engine.turn(seq(3000, 16))
    assert run(recall(engine.cache, tier, A)).tokens == 15
    assert offsets(engine, A) == [12, 15]
    assert engine.cache.match(B).length == 15


def test_a_path_that_grows_meanwhile_loses_nothing(make_engine, make_tier) -> None:
    """Requests go on between the steps: the last block is replaced, and the path grows to the tokens' end."""
    for steps in range(12):
        engine = make_engine(block=BLOCK)
        tier = make_tier(engine)
        engine.turn(A[:14])
        transfer = offload(engine.cache, tier, A + B)
        for _ in range(steps):
            next(transfer, None)
        engine.turn(A[:15], every=1, min_gap=1)
        engine.turn(A + B, every=6)
        before = offsets(engine, A + B)
        for _ in transfer:
            pass
        engine.cache.check()
        run(recall(engine.cache, tier, A + B))
        assert set(offsets(engine, A + B)) >= set(before)


def test_snapshots_that_go_meanwhile_are_left_out(make_engine, make_tier) -> None:
    for steps in range(1, 10):
        engine = make_engine(block=8, snapshots=4)
        tier = make_tier(engine)
        engine.turn(A, every=2, min_gap=1)
        transfer = offload(engine.cache, tier, A)
        for _ in range(steps):
            next(transfer, None)
        for start in (2000, 3000, 4000):
            engine.turn(seq(start, 6))
        for _ in transfer:
            pass
        engine.cache.check()
        tier.check()


def test_a_stopped_transfer_holds_nothing(make_engine, make_tier) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_tier(engine)
    engine.turn(A, every=4)
    transfer = offload(engine.cache, tier, A)
    next(transfer)
    assert engine.cache.stats().leases == 1
    transfer.close()
    assert engine.cache.stats().leases == 0
    run(offload(engine.cache, tier, A))
    transfer = recall(engine.cache, tier, A, step_bytes=1)
    next(transfer)
    transfer.close()
    assert engine.cache.stats().leases == 0
    engine.cache.clear()
    assert not engine.executor.blocks


def test_subscribers_see_what_leaves_and_comes_back(make_engine, make_tier) -> None:
    bus = EventBus()
    seen = []
    bus.subscribe(lambda _, event: seen.append(event))
    engine = make_engine(block=BLOCK, events=bus)
    tier = make_tier(engine)
    engine.turn(A)
    stored = Counter((event.item, event.hash, event.tokens) for event in seen if isinstance(event, Stored))
    seen.clear()
    run(offload(engine.cache, tier, A))
    assert {event.reason for event in seen if isinstance(event, Removed)} == {"offloaded"}
    assert Counter((event.item, event.hash) for event in seen) == Counter((item, name) for item, name, _ in stored)
    seen.clear()
    run(recall(engine.cache, tier, A))
    assert Counter((event.item, event.hash, event.tokens) for event in seen if isinstance(event, Stored)) == stored


# -- files


def make_files(engine, clock, folder, budget: int = 1 << 20) -> Tier:
    return Tier(engine.executor.info, budget_bytes=budget, directory=folder, clock=clock)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damaged_files_are_recomputed(make_engine, clock, tmp_path, harm) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_files(engine, clock, tmp_path)
    engine.turn(A, every=4, min_gap=1)
    run(offload(engine.cache, tier, A))
    files = sorted(tmp_path.glob("*/*.kv"), key=lambda path: int(path.stem))
    assert len(files) == tier.stats().blocks + tier.stats().snapshots
    third = files[4]  # block, snapshot, block, snapshot, block
    if harm == "remove":
        third.unlink()
    else:
        data = third.read_bytes()
        third.write_bytes(data[:-1] if harm == "cut" else bytes([data[0] ^ 1]) + data[1:])
    assert run(recall(engine.cache, tier, A)).tokens == 8
    assert tier.stats().damaged == 1
    tier.check()
    engine.cache.check()
    assert engine.turn(A) == 8
    tier.close()


def test_a_damaged_snapshot_leaves_the_one_before(make_engine, clock, tmp_path) -> None:
    engine = make_engine(block=BLOCK)
    tier = make_files(engine, clock, tmp_path)
    engine.turn(A, every=4, min_gap=1)
    run(offload(engine.cache, tier, A))
    last = max(tmp_path.glob("*/*.kv"), key=lambda path: int(path.stem))
    last.write_bytes(b"x" * last.stat().st_size)
    assert run(recall(engine.cache, tier, A)).tokens == 12
    tier.check()
    tier.close()


def test_files_of_the_dead_are_removed_and_those_of_others_are_not(make_engine, clock, tmp_path) -> None:
    engine = make_engine(block=BLOCK)
    (tmp_path / "notes.kv").write_text("mine")
    (tmp_path / "edgellm-offload-notes").write_text("mine")
    running, dead = make_files(engine, clock, tmp_path), make_files(engine, clock, tmp_path)
    engine.turn(A)
    run(offload(engine.cache, running, A))
    engine.turn(B)
    run(offload(engine.cache, dead, B))
    dead._vault._backing._lock.close()  # as when its process ends
    assert len(list(tmp_path.glob("*/*.kv"))) == 10
    third = make_files(engine, clock, tmp_path)
    assert len(list(tmp_path.glob("*/*.kv"))) == 5
    assert run(recall(engine.cache, running, A)).tokens == 15
    for tier in (running, third):
        tier.close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["edgellm-offload-lock", "edgellm-offload-notes", "notes.kv"]


def test_files_are_for_their_owner_only(make_engine, clock, tmp_path) -> None:
    tier = make_files(make_engine(), clock, tmp_path / "new")
    (folder,) = (tmp_path / "new").glob("*/")
    assert folder.stat().st_mode & 0o077 == 0
    tier.close()


def test_a_folder_that_cannot_be_made_is_named(make_engine, clock, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"offload_dir .*file"):
        make_files(make_engine(), clock, tmp_path / "file")
