"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgellm.errors import ConfigError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its name when the block ends without an error, and is removed otherwise.

    Raises:
        ConfigError: `out` is something other than an empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    scratch.mkdir()
    try:
        yield scratch
        if out.exists():
            out.rmdir()
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
