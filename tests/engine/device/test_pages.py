from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.engine.device.pages import PagePool
from edgellm.errors import ExecutionError


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 50)), max_size=200))
def test_pages_are_free_exactly_without_references(steps: list[tuple[str, int]]) -> None:
    pool, held = PagePool(6), list[int]()
    for kind, which in steps:
        if kind == "take":
            if len(set(held)) == 6:
                with pytest.raises(ExecutionError, match="all 6 KV pages are in use"):
                    pool.take()
            else:
                page = pool.take()
                assert page not in held
                held.append(page)
        elif held and kind == "share":
            pool.share(held[which % len(held)])
            held.append(held[which % len(held)])
        elif held:
            pool.release(held.pop(which % len(held)))
        assert pool.free == 6 - len(set(held))


def test_a_free_page_is_nobodys() -> None:
    pool = PagePool(2)
    for call in (pool.share, pool.release):
        with pytest.raises(ValueError, match="page 1 is free"):
            call(1)
