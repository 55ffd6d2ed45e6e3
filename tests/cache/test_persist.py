"""Shared prefixes survive a restart, and nothing wrong is ever loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from pathlib import Path

import pytest

from edgellm.cache import PrefixStore
from edgellm.cache.prefix_file import MAGIC
from edgellm.errors import ConfigError

PREFIX = tuple(range(100, 210))


class Wall:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def restart(make_engine, clock, wall, tmp_path):
    """restart(**budgets) -> (engine, store) over the same folder."""

    def start(*, budget_bytes: int = 1 << 20, **budgets):
        engine = make_engine(block=64, **budgets)
        store = PrefixStore(engine.cache, tmp_path, budget_bytes=budget_bytes, clock=clock, wall_clock=wall)
        return engine, store

    return start


def fill(engine, store, prefix=PREFIX, *, salt: str = "", **options) -> None:
    """Two prompts that share `prefix`, saved as the engine does it."""
    for tail in ((1, 2, 3), (4, 5, 6)):
        live = engine.start(prefix + tail, salt=salt, **options)
        live.restore()
        for point in list(live.points):
            assert live.step()
            priority = options.get("priority", 35)
            store.maybe_save(live.prompt, point.offset, salt=salt, kind=point.kind, priority=priority)
        live.end()


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_shared_prefix_survives(restart, tmp_path) -> None:
    engine, store = restart()
    fill(engine, store)
    assert list(tmp_path.iterdir()) == []  # nothing is written before the engine has time
    assert store.flush() == 1
    assert only_file(tmp_path).stat().st_mode & 0o077 == 0
    engine, store = restart()
    report = store.load_all()
    assert (report.loaded, report.tokens, report.skipped) == (1, len(PREFIX), ())
    assert engine.turn((*PREFIX, 7, 8)) == 2
    fill(engine, store)
    assert store.flush() == 0  # it is there already
    engine.cache.clear()
    assert not engine.executor.blocks


def test_own_turns_are_not_saved_unless_their_priority_is_high(restart, tmp_path) -> None:
    engine, store = restart()
    engine.turn(PREFIX)
    assert not store.maybe_save(PREFIX, len(PREFIX) - 1, kind="stable")
    assert not store.maybe_save(PREFIX, len(PREFIX) - 1, kind="stable", priority=35)
    assert store.maybe_save(PREFIX, len(PREFIX) - 1, kind="stable", priority=36)
    store.close()
    only_file(tmp_path)


def test_explicit_save(restart) -> None:
    engine, store = restart()
    engine.turn(PREFIX)
    assert store.save_prefix(PREFIX[:-1])
    assert not store.save_prefix(PREFIX[:-2])  # no snapshot there
    assert not store.save_prefix((1, 2, 3))


def test_what_was_evicted_before_the_flush_is_forgotten(restart, tmp_path) -> None:
    engine, store = restart()
    fill(engine, store)
    engine.cache.clear()
    assert store.flush() == 0
    assert list(tmp_path.iterdir()) == []


def test_salts_stay_apart_and_are_not_written(restart, tmp_path) -> None:
    engine, store = restart()
    fill(engine, store, salt="top-secret-salt")
    store.close()
    assert b"top-secret-salt" not in only_file(tmp_path).read_bytes()
    engine, store = restart()
    assert store.load_all().loaded == 1
    assert engine.cache.match((*PREFIX, 1)).length == 0
    assert engine.cache.match((*PREFIX, 1), salt="top-secret-salt").length == len(PREFIX)


def test_priority_and_what_is_left_of_its_duration_survive(restart, clock, wall) -> None:
    engine, store = restart()
    fill(engine, store, priority=90, duration_s=100)
    store.close()
    for waited, expected in ((60, 90), (200, 35)):
        wall.now = Wall.now + waited
        engine, store = restart()
        assert store.load_all().loaded > 0
        assert {node.retention.at(clock()) for node in engine.cache.pool.leaves} == {expected}


HEAD = len(MAGIC) + 4 + 32


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def body(data: bytes) -> int:
    """Where the tokens start."""
    return HEAD + struct.unpack_from("<I", data, len(MAGIC))[0]


def blocks(data: bytes) -> int:
    """Where the first block starts."""
    return body(data) + json.loads(data[HEAD : body(data)])["parts"][0]["bytes"]


DAMAGES = {
    "empty": ("not a prefix file", lambda data: b""),
    "text": ("not a prefix file", lambda data: b"hello world"),
    "magic only": ("truncated", lambda data: data[: len(MAGIC)]),
    "half a header": ("truncated", lambda data: data[: HEAD + 20]),
    "huge header": ("corrupt", lambda data: MAGIC + b"\xff\xff\xff\xff" + data[len(MAGIC) + 4 :]),
    "header": ("corrupt", lambda data: flipped(data, HEAD + 20)),
    "header hash": ("corrupt", lambda data: flipped(data, HEAD - 1)),
    "tokens": ("corrupt", lambda data: flipped(data, body(data))),
    "block": ("corrupt", lambda data: flipped(data, blocks(data) + 1)),
    "snapshot": ("corrupt", lambda data: flipped(data, len(data) - 1)),
    "one byte short": ("truncated", lambda data: data[:-1]),
    "one byte more": ("corrupt", lambda data: data + b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_skipped(restart, tmp_path, damage, caplog) -> None:
    engine, store = restart()
    fill(engine, store)
    store.close()
    path = only_file(tmp_path)
    reason, change = DAMAGES[damage]
    path.write_bytes(change(path.read_bytes()))
    engine, store = restart()
    report = store.load_all()
    assert report.loaded == 0
    assert [(skipped.path, skipped.reason) for skipped in report.skipped] == [(path, reason)]
    assert path.name in caplog.text
    assert not engine.executor.blocks
    assert engine.cache.stats().snapshots == 0
    fill(engine, store)
    assert store.flush() == 1  # a good one takes its place
    assert restart()[1].load_all().loaded == 1


def test_foreign_files_are_skipped(restart, make_engine, tmp_path) -> None:
    engine, store = restart()
    fill(engine, store)
    store.close()
    for change in ({"fingerprint": "another model"}, {"block_tokens": 32}):
        engine, store = restart()
        engine.executor.info = dataclasses.replace(engine.executor.info, **change)
        report = store.load_all()
        assert [skipped.reason for skipped in report.skipped] == ["foreign"]
        assert str(next(iter(change.values()))) in report.skipped[0].detail


def test_an_executor_that_refuses_the_bytes_stops_nothing(restart) -> None:
    engine, store = restart()
    fill(engine, store)
    store.close()
    for failing in (1, 2, 3):
        engine, store = restart()
        calls = iter(range(1, 9))

        def refuse(load, calls=calls, failing=failing):
            def inner(data):
                if next(calls) == failing:
                    raise ValueError("bad rows")
                return load(data)

            return inner

        executor = engine.executor
        executor.load_block, executor.load_snapshot = refuse(executor.load_block), refuse(executor.load_snapshot)
        assert [skipped.reason for skipped in store.load_all().skipped] == ["corrupt"]
        engine.cache.check()
        assert engine.cache.match((*PREFIX, 1)).length == 0
        engine.cache.clear()
        assert not executor.blocks


def test_the_folder_stays_within_its_budget(restart, tmp_path) -> None:
    engine, store = restart()
    prefixes = [tuple(range(start, start + 90)) for start in (1000, 2000, 3000, 4000)]
    fill(engine, store, prefixes[0])
    store.flush()
    size = only_file(tmp_path).stat().st_size
    engine, store = restart(budget_bytes=2 * size + size)
    for age, prefix in enumerate(prefixes):
        fill(engine, store, prefix)
        store.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * size
        for path in tmp_path.iterdir():
            if path.stat().st_mtime > 10_000:
                os.utime(path, (age, age))
    (tmp_path / "notes.txt").write_text("not ours")
    engine, store = restart(budget_bytes=3 * size)
    report = store.load_all()
    found = [engine.cache.match((*prefix, 1)).length == 90 for prefix in prefixes]
    assert found[-1]
    assert not found[0]
    assert report.loaded == sum(found) >= 2
    assert (tmp_path / "notes.txt").exists()


def test_a_prefix_bigger_than_the_budget_is_not_written(restart, tmp_path) -> None:
    engine, store = restart(budget_bytes=100)
    fill(engine, store)
    assert store.flush() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budgets", [{"blocks": 1}, {"snapshots": 0}, {"blocks": 0}])
def test_a_cache_too_small_for_a_file_skips_it(restart, budgets) -> None:
    engine, store = restart()
    fill(engine, store)
    store.close()
    engine, store = restart(**budgets)
    assert [skipped.reason for skipped in store.load_all().skipped] == ["does not fit"]
    assert not engine.executor.blocks


def test_a_full_disk_is_no_error(restart, tmp_path, monkeypatch, caplog) -> None:
    engine, store = restart()
    fill(engine, store)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert store.flush() == 0
    assert list(tmp_path.iterdir()) == []
    assert "No space left" in caplog.text


def test_stale_temporary_files_are_removed(restart, tmp_path) -> None:
    _, store = restart()
    for name, mtime in (("a.prefix.7.tmp", 0), ("b.prefix.7.tmp", 999_999)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (mtime, mtime))
    assert store.load_all().loaded == 0
    assert [path.name for path in tmp_path.iterdir()] == ["b.prefix.7.tmp"]


def test_the_folder_must_be_one(make_engine, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache_dir .*file"):
        PrefixStore(make_engine().cache, tmp_path / "file")
