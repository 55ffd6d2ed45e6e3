"""The store of responses: bounds, owners, conversations, restarts, several threads at once."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.errors import ConfigError
from edgellm.server.responses.store import Store, Stored

ME, YOU = b"me", b"you"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def stored(name: str, previous: str | None = None, *, owner: bytes = ME, text: str = "hi") -> Stored:
    output = [{"id": f"msg_{name}", "type": "message", "text": text}]
    body = {"id": name, "previous_response_id": previous, "output": output}
    return Stored(owner, body, [{"id": f"in_{name}", "type": "message"}])


def written(store: Store) -> Store:
    """After the writes so far."""
    store._writer.submit(lambda: None).result()
    return store


def names(store: Store) -> set[str]:
    return {name for (name,) in written(store)._db.execute("SELECT id FROM response").fetchall()}


@pytest.fixture
def store() -> Any:
    made = Store(None, max_bytes=1 << 20)
    yield made
    made.close()


def test_a_response_is_there_at_once_and_afterwards(store: Store) -> None:
    one = stored("a")
    store.put(one)
    assert store.get("a", ME) == one
    assert written(store).get("a", ME) == one
    assert store.get("b", ME) is None


def test_an_owner_sees_nothing_of_another(store: Store) -> None:
    store.put(stored("a"))
    for each in (store, written(store)):
        assert each.get("a", YOU) is None
        assert each.history("a", YOU) is None
        assert each.item("msg_a", YOU) is None
        assert not each.delete("a", YOU)
        assert each.get("a", ME) is not None


def test_conversations_are_read_from_their_start(store: Store) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
        store.put(stored(name, previous))
    for each in (store, written(store)):
        assert [turn.id for turn in each.history("c", ME) or []] == ["a", "b", "c"]
        assert [turn.id for turn in each.history("d", ME) or []] == ["a", "d"]
    store.delete("a", ME)
    assert store.history("c", ME) is None


def test_items_are_found_by_their_ids(store: Store) -> None:
    store.put(stored("a"))
    for each in (store, written(store)):
        assert each.item("msg_a", ME) == {"id": "msg_a", "type": "message", "text": "hi"}
        assert each.item("in_a", ME) == {"id": "in_a", "type": "message"}
        assert each.item("in_b", ME) is None
    store.delete("a", ME)
    assert store.item("msg_a", ME) is None


def test_a_deleted_response_is_not_written_afterwards(store: Store) -> None:
    for number in range(50):
        store.put(stored(f"r{number}"))
        assert store.delete(f"r{number}", ME)
    assert names(store) == set()
    assert not store.delete("r0", ME)


def test_what_is_older_goes_and_what_is_used_stays() -> None:
    clock = Clock()
    store = Store(None, max_bytes=1 << 20, max_age_s=100.0, clock=clock)
    for name in ("a", "b"):
        store.put(stored(name))
    written(store)
    clock.now += 80
    assert store.history("a", ME)
    written(store)
    clock.now += 50
    store.put(stored("c"))
    assert names(store) == {"a", "c"}
    store.close()


def test_continuing_uses_the_whole_conversation() -> None:
    clock = Clock()
    store = Store(None, max_bytes=3000, clock=clock)
    for name, previous in (("a", None), ("x", None), ("y", None), ("b", "a")):
        store.put(stored(name, previous))
    assert store.history("b", ME)
    while "x" in names(store):
        store.put(stored(f"filler{clock.now}"))
    assert store.history("b", ME) is not None  # although its first response is the oldest of all
    store.close()


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5)), max_size=25), limit=st.integers(500, 6000))
def test_bytes_are_bounded_and_conversations_lose_their_ends_first(sizes: list[tuple[int, int]], limit: int) -> None:
    store = Store(None, max_bytes=limit, clock=Clock())
    previous: list[str | None] = [None] * 6
    for number, (size, conversation) in enumerate(sizes):
        name = f"r{number}"
        noise = "".join(chr(33 + (number * 7 + k * k) % 90) for k in range(size))
        store.put(stored(name, previous[conversation], text=noise))
        kept = names(store)
        assert store.size <= limit
        previous[conversation] = name if name in kept else None
        for each in kept:  # nothing is kept whose beginning is gone
            assert store.history(each, ME) is not None
    store.close()


def test_a_response_larger_than_the_store_is_not_kept() -> None:
    store = Store(None, max_bytes=1000)
    store.put(stored("a"))
    store.put(stored("b", text="".join(chr(33 + k * k % 90) * (k % 3) for k in range(90_000))))
    assert names(store) == {"a"}
    store.close()


def test_it_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    first = Store(path, max_bytes=1 << 20)
    first.put(stored("a"))
    first.put(stored("b", "a", text="é😀\u2028"))
    first.close()
    assert path.stat().st_mode & 0o077 == 0
    second = Store(path, max_bytes=1 << 20)
    assert second.history("b", ME) == [stored("a"), stored("b", "a", text="é😀\u2028")]
    second.close()
    smaller = Store(path, max_bytes=1)
    assert names(smaller) == set()
    smaller.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to have a header of its own" * 10)
    with pytest.raises(ConfigError, match=r"responses_store: .*notes\.txt"):
        Store(text, max_bytes=1000)
    assert text.read_text().startswith("not a database")
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="version 99"):
        Store(newer, max_bytes=1000)
    with pytest.raises(ConfigError, match="responses_store"):
        Store(tmp_path / "missing" / "x.db", max_bytes=1000)


def test_several_threads(store: Store) -> None:
    def work(thread: int) -> None:
        owner = bytes([thread])
        previous = None
        for number in range(30):
            name = f"t{thread}n{number}"
            store.put(stored(name, previous, owner=owner))
            assert len(store.history(name, owner) or []) == number + 1
            assert store.item(f"msg_{name}", owner) is not None
            previous = name

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(names(store)) == 180


def test_a_write_that_fails_is_logged_and_leaves_the_store_usable(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(stored("a"))
    written(store).put(stored("a"))  # ids are unique
    assert names(store) == {"a"}
    assert "could not be stored" in caplog.text
    store.put(stored("b"))
    assert names(store) == {"a", "b"}
