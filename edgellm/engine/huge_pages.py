"""Put freshly allocated memory on huge pages.

Decoding reads every weight once per token, so its speed is that of memory, and on 4 KiB pages address translation
takes part of it (2 to 27 % of a decode step on the machines measured). ONNX Runtime allocates weights without asking
for huge pages and Linux gives them only on demand by default, so the demand is made here, for what a block of code
allocated and nothing else of the process.

What must stay true: this only moves pages; where the kernel cannot or will not, nothing changes and nothing fails.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

Span = tuple[int, int]  # first address, end
_MAPS: Final = Path("/proc/self/maps")
_HUGE: Final = 2 << 20  # bytes of a huge page (x86-64, and arm64 with 4 KiB pages)
_SMALLEST: Final = 2 * _HUGE
_MADV_HUGEPAGE: Final = 14  # linux/mman.h: later faults may take huge pages, and khugepaged may make them
_MADV_COLLAPSE: Final = 25  # Linux 6.1: make them now


@contextmanager
def huge_pages() -> Iterator[None]:
    """Afterwards the large anonymous mappings that the block made are on huge pages, as far as the kernel allows."""
    before = anonymous_spans()
    yield
    if not before:
        return
    libc = ctypes.CDLL(None)
    for start, end in grown(before, anonymous_spans()):
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def anonymous_spans() -> list[Span]:
    """Writable private mappings without a file, the heap included; empty where the system does not list them."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        lines = _MAPS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    return [
        (int(start, 16), int(end, 16))
        for (span, access, *_, inode), name in (_fields(line) for line in lines)
        if access == "rw-p" and inode == "0" and name in ("", "[heap]")
        for start, end in [span.split("-")]
    ]


def grown(before: list[Span], after: list[Span]) -> list[Span]:
    """The parts of `after` that are not in `before`, those that hold a huge page or more. Both are sorted."""
    found = []
    for start, end in after:
        for known_start, known_end in before:
            if known_start < end and known_end > start:
                found.append((start, known_start))
                start = known_end
        found.append((start, end))
    return [(start, end) for start, end in found if end - start >= _SMALLEST]


def _fields(line: str) -> tuple[list[str], str]:
    """Address, access, offset, device and inode of a line of /proc/self/maps, and its name."""
    fields = line.split(maxsplit=5)
    return fields[:5], fields[5] if len(fields) > 5 else ""
