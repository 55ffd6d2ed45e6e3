"""Choose the executor for a bundle."""

from __future__ import annotations

import os

import psutil

from edgellm.engine.base import Executor
from edgellm.engine.bundle import TARGETS, Bundle
from edgellm.engine.ort import OrtExecutor
from edgellm.errors import BundleError


def open_executor(
    bundle: Bundle, *, slots: int, context: int | None = None, threads: int | None = None, speculation: bool = True
) -> Executor:
    """An executor for `bundle`, which `Bundle.open` has found to fit this machine.

    Args:
        slots: sequences that can run at the same time.
        context: tokens a sequence can hold; default: the bundle's context.
        threads: CPU threads; default: one for each physical core that this process may use.
        speculation: whether verify and draft are needed; without them their graphs are not loaded.

    Raises:
        BundleError: there is no executor for the bundle's target.
        ConfigError: a setting is out of range, or the memory that it implies is not there.
    """
    if bundle.manifest.target not in TARGETS:
        raise BundleError(f"{bundle.path} was built for {bundle.manifest.target!r}, which has no executor yet")
    return OrtExecutor(
        bundle,
        slots=slots,
        context=bundle.manifest.context if context is None else context,
        threads=usable_cores() if threads is None else threads,
        speculation=speculation,
    )


def usable_cores() -> int:
    """Physical cores that this process may use (two hardware threads of a core share its vector units)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
