"""`Finding`: one thing that the doctor checked, and how findings are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Status = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing: `detail` is what was seen, `advice` what to do about it ("" when there is nothing to do)."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def print_findings(findings: list[Finding], console: Console) -> None:
    """Show findings as a table."""
    table = Table("check", "status", "seen", "what to do")
    style = {"ok": "green", "info": "cyan", "warn": "yellow", "fail": "bold red"}
    for finding in findings:
        status = f"[{style[finding.status]}]{finding.status}[/]"
        table.add_row(finding.name, status, escape(finding.detail), escape(finding.advice))
    console.print(table)
