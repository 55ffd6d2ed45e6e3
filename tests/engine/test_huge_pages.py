"""Only what a block allocated is moved to huge pages, and its content stays."""

from __future__ import annotations

import mmap
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.engine.huge_pages import anonymous_spans, grown, huge_pages

MB = 1 << 20
spans = st.lists(st.integers(0, 400), min_size=0, max_size=12, unique=True).map(
    lambda cuts: [(a * MB, b * MB) for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)


@given(spans, spans)
def test_growth_is_what_was_not_there_before(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    def cells(parts: list[tuple[int, int]]) -> set[int]:
        return {cell for start, end in parts for cell in range(start // MB, end // MB)}

    found = grown(before, after)
    assert cells(found) <= cells(after) - cells(before)
    assert all(end - start >= 4 * MB for start, end in found)
    missed = cells(after) - cells(before) - cells(found)  # only in pieces too small to matter
    assert not any({cell, cell + 1, cell + 2, cell + 3} <= missed for cell in missed if _together(cell, after))


def _together(cell: int, parts: list[tuple[int, int]]) -> bool:
    return any(start <= cell * MB and (cell + 4) * MB <= end for start, end in parts)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the mappings are listed by Linux")
def test_content_survives_and_the_mapping_is_found() -> None:
    before = anonymous_spans()
    with huge_pages():
        memory = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:: MB // 2] = bytes(range(128))
    assert sum(end - start for start, end in grown(before, anonymous_spans())) >= 64 * MB
    assert memory[:: MB // 2] == bytes(range(128))
    memory.close()
