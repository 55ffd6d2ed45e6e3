"""compute-sanitizer over the quick set of kernels: writes out of bounds, and races in shared memory.

What must stay true: a tool that is not there is said to be so, and one that found something makes the run fail.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOOL: Final = "compute-sanitizer"
CHECKS: Final = ("memcheck", "racecheck")
_FOUND: Final = 86  # exit status when the tool found something
_SUMMARY: Final = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """What one check said. `status`: "ok", "failed" (it found something), "error" (it did not run), "skipped"."""

    check: str
    status: str
    detail: str


def sanitize(arguments: Sequence[str], seconds: float) -> list[Sanitized]:
    """Run `python -m edgellm.jetson.bench_gpu ARGUMENTS` under every check; each has its share of `seconds`."""
    path = shutil.which(TOOL)
    if path is None:
        return [Sanitized(check, "skipped", f"{TOOL} is not on PATH") for check in CHECKS]
    found = []
    for left, check in zip(range(len(CHECKS), 0, -1), CHECKS, strict=True):
        began = time.monotonic()
        found.append(_run(path, check, arguments, seconds / left))
        seconds -= time.monotonic() - began
    return found


def _run(path: str, check: str, arguments: Sequence[str], seconds: float) -> Sanitized:
    if seconds < 10:
        return Sanitized(check, "skipped", "no time left")
    own = [sys.executable, "-m", "edgellm.jetson.bench_gpu", *arguments]
    # Errors of API calls are the program's own to handle: cuda.bindings asks for entry points that a driver may lack.
    quiet = ["--report-api-errors", "no"] if check == "memcheck" else []
    command = [path, "--tool", check, *quiet, "--error-exitcode", str(_FOUND), *own]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Sanitized(check, "skipped", f"stopped after {seconds:.0f} s")
    except OSError as error:
        return Sanitized(check, "error", str(error))
    text = done.stdout + done.stderr
    summaries = _SUMMARY.findall(text)
    said = summaries[-1] if summaries else text[-300:].strip()
    if not summaries:
        return Sanitized(check, "error", said)
    clean = done.returncode == 0 and re.search(r"SUMMARY: 0 |\(0 errors", said) is not None
    return Sanitized(check, "ok" if clean else "failed", said)
