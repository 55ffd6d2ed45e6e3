"""Choose the executor for a bundle."""

from __future__ import annotations

import os

from edgellm.engine.base import Executor
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor


def open_executor(
    bundle: Bundle, *, slots: int, context: int | None = None, threads: int | None = None, speculation: bool = True
) -> Executor:
    """An executor for `bundle` (its target was checked when it was opened).

    Args:
        slots: sequences that can run at the same time.
        context: tokens a sequence can hold; default: all positions of the bundle, at most 32768.
        threads: CPU threads; default: all this process may use.
        speculation: whether verify() and draft() are needed; without them their graphs are not loaded.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return OrtExecutor(
        bundle,
        slots=slots,
        context=context or min(bundle.manifest.context, 32_768),
        threads=threads or usable,
        speculation=speculation,
    )
