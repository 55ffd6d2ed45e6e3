"""`edgellm doctor`: what this machine has, what fits, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table

from edgellm.errors import EdgeLLMError

Status = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing. `detail` says what was seen and, when it is not ok, what to do."""

    name: str
    status: Status
    detail: str


def examine(bundle: Path | None = None) -> list[Finding]:
    """Check Python, packages, cores, memory, disk, the accelerator and, when given, a bundle."""
    findings = [_python(), *_packages(), _cores(), _memory(), _disk(), _device()]
    if bundle is not None:
        findings.append(_bundle(bundle))
    return findings


def print_findings(findings: list[Finding], console: Console) -> None:
    """Show findings as a table."""
    table = Table("check", "status", "detail")
    style = {"ok": "green", "info": "cyan", "warn": "yellow", "fail": "bold red"}
    for finding in findings:
        table.add_row(finding.name, f"[{style[finding.status]}]{finding.status}[/]", finding.detail)
    console.print(table)


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", "ok" if ok else "fail", f"{platform.python_version()} on {platform.machine()}")


def _packages() -> list[Finding]:
    found = []
    for name, need in (("onnxruntime", "the CPU executor"), ("onnx", "building bundles"), ("tokenizers", "text")):
        try:
            found.append(Finding(name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append(Finding(name, "fail", f"missing: needed for {need}; reinstall edgellm"))
    return found


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(
        "cores", "ok" if usable > 1 else "warn", f"{usable} usable, {psutil.cpu_count(logical=False)} physical"
    )


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    status: Status = "ok" if memory.available > 4 << 30 else "warn"
    return Finding("memory", status, f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    return Finding("disk", "ok" if free > 10 << 30 else "warn", f"{free / 2**30:.0f} GiB free here")


def _device() -> Finding:
    release = Path("/etc/nv_tegra_release")
    if release.is_file():
        return Finding("device", "info", f"Jetson: {release.read_text(errors='replace').splitlines()[0].lstrip('# ')}")
    if Path("/proc/driver/nvidia/version").is_file():
        return Finding("device", "info", "NVIDIA driver found; this version runs on the CPU executor")
    return Finding("device", "info", "no NVIDIA device: the CPU executor runs everything")


def _bundle(path: Path) -> Finding:
    from edgellm.engine.bundle import Bundle

    try:
        bundle = Bundle.open(path, verify="full")
    except EdgeLLMError as error:
        return Finding("bundle", "fail", str(error))
    needed = sum(entry.bytes for entry in bundle.manifest.files)
    available = psutil.virtual_memory().available
    if needed > available:
        return Finding("bundle", "fail", f"needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB available")
    return Finding("bundle", "ok", f"{path}: all hashes match, {needed / 2**20:.0f} MiB, {bundle.manifest.target}")
