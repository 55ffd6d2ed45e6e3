"""`Host`: the only door to the machine that is looked at, so that a test can hand in another one.

What must stay true: nothing here raises for what is absent, unreadable or slow; it is None, and the reader says so.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edgellm.engine.trt.machine import cuda_version

_SECONDS: Final = 5.0  # that a tool has to answer


def run_tool(command: Sequence[str]) -> str | None:
    """What `command` prints; None when it is not there, fails, or does not answer in time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def package_version(name: str) -> str | None:
    """Version of the Python distribution `name` that this interpreter sees."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Host:
    """A file tree, tools, Python packages and the environment.

    Attributes:
        root: where /proc, /sys, /etc, … are.
        run: prints of a tool, or None.
        package: version of a Python distribution, or None.
        cuda_driver: newest CUDA that the driver runs, or None.
    """

    root: Path = Path("/")
    run: Callable[[Sequence[str]], str | None] = run_tool
    package: Callable[[str], str | None] = package_version
    cuda_driver: Callable[[], str | None] = cuda_version
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def text(self, path: str) -> str | None:
        """Contents of the file `path` (from the root, without a leading slash), stripped of ends and NULs."""
        try:
            return (self.root / path).read_bytes().decode(errors="replace").strip("\0 \n\t")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in the file `path`."""
        text = self.text(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def find(self, pattern: str) -> list[str]:
        """Paths (as `text` takes them) that match the glob `pattern`, sorted."""
        try:
            return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))
        except OSError:
            return []
