"""Progress of long work as a callback, and rich bars that draw it.

Library functions take `progress: Progress | None` and call it with (phase, done, total); they never print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

Progress = Callable[[str, int, int], None]  # (phase, done, total) in any unit that grows


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """One bar per phase on `console`."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=console) as display:
        tasks: dict[str, TaskID] = {}

        def update(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = display.add_task(phase, total=total)
            display.update(tasks[phase], completed=done, total=total)

        yield update
