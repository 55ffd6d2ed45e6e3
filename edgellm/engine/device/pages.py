"""Which page of the KV pool belongs to whom: reference counts on the host; the pool itself is device memory.

What must stay true: a page is free, or it has as many references as slots' page tables and published blocks name it; a
slot writes only rows of a page that nobody else can see. The page that holds a slot's last tokens is the slot's own: a
restore into the middle of a page takes a copy of it, and a published block of the first rows of a page never sees the
rows that its slot writes behind them.
"""

from __future__ import annotations

from edgellm.errors import ExecutionError


class PagePool:
    """Pages 0 … count - 1."""

    def __init__(self, count: int) -> None:
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """A free page, with one reference.

        Raises:
            ExecutionError: there is none: more blocks were published than the executor has room for.
        """
        if not self._free:
            raise ExecutionError(f"all {len(self._references)} KV pages are in use")
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more reference to a page that has some."""
        if not self._references[page]:
            raise ValueError(f"page {page} is free")
        self._references[page] += 1

    def release(self, page: int) -> None:
        """One reference less; a page without references is free."""
        if not self._references[page]:
            raise ValueError(f"page {page} is free")
        self._references[page] -= 1
        if not self._references[page]:
            self._free.append(page)
