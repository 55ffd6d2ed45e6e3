"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result
from typer.testing import CliRunner

from edgellm.cli import app

Run = Callable[..., Result]


def edgellm(*args: object) -> Result:
    """Runs `edgellm ARGS`; exit status, stdout, stderr and the exception are in the result."""
    return CliRunner().invoke(app, [str(arg) for arg in args])
