"""What quantizing lost, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from edgellm.quantize.writer import Error

_SHOWN: Final = 10


def print_errors(errors: Sequence[Error], console: Console) -> None:
    """The modules that lost most, and the mean of all."""
    worst = sorted(errors, key=lambda error: -error.relative)[:_SHOWN]
    table = Table("module", "relative error", title=f"{len(errors)} matrices in NVFP4; the worst {len(worst)}")
    for error in worst:
        table.add_row(error.module, f"{error.relative:.4f}")
    table.add_row("mean of all", f"{sum(error.relative for error in errors) / len(errors):.4f}")
    console.print(table)
