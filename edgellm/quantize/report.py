"""What quantizing lost, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from edgellm.quantize.loss import Error

_SHOWN: Final = 10


def print_errors(errors: Sequence[Error], console: Console) -> None:
    """The modules that lost most, and the mean of all."""
    worst = sorted(errors, key=lambda error: -error.relative)[:_SHOWN]
    outputs = [error.output for error in errors if error.output is not None]
    table = Table("module", "error of weights", title=f"{len(errors)} matrices in NVFP4; the worst {len(worst)}")
    if outputs:
        table.add_column("of outputs")
    for error in worst:
        table.add_row(error.module, f"{error.relative:.4f}", *([f"{error.output:.4f}"] if outputs else []))
    mean = sum(error.relative for error in errors) / len(errors)
    table.add_row("mean of all", f"{mean:.4f}", *([f"{sum(outputs) / len(outputs):.4f}"] if outputs else []))
    console.print(table)
