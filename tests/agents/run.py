"""`python -m agents.run` in tests/: real agents do a small task against our server, whose model is scripted.

Needs npm and its registry, once: the agents go to .cache/agents. Ends with 1 when anything is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from .checks import Report, judge
from .clients import CLIENTS, Client, Outcome, Place, prepare, say
from .redact import write_fixture
from .script import AGAIN, DELEGATE, FILE, TASK
from .serving import Exchange, served

HERE: Final = Path(__file__).resolve().parent
INSTALLED: Final = HERE.parents[1] / ".cache" / "agents"
BINARIES: Final = INSTALLED / "node_modules" / ".bin"


def install(clients: list[Client]) -> None:
    """Bring the pinned versions to `INSTALLED`; nothing is done for those that are there.

    Raises:
        SystemExit: there is no npm, or it failed.
    """
    missing = sorted({f"{c.package}@{c.version}" for c in clients if installed_version(c) != c.version})
    if not missing:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(f"npm is not installed; it is needed to install {', '.join(missing)}")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(INSTALLED), "--no-audit", "--no-fund", "--save-exact", *missing]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"npm could not install {', '.join(missing)}")


def installed_version(client: Client) -> str | None:
    """What is in `INSTALLED`."""
    path = INSTALLED / "node_modules" / client.package / "package.json"
    return str(json.loads(path.read_text())["version"]) if path.is_file() else None


def run(client: Client, limit_s: float, *, record: bool) -> tuple[Report, list[Outcome]]:
    """One agent on a server of its own: three texts in one session."""
    exchanges: list[Exchange] = []
    with tempfile.TemporaryDirectory(prefix="edgellm-agent-") as folder, served(exchanges) as server:
        place = Place(server, Path(folder) / "home", Path(folder) / "work")
        prepare(client, place)
        outcomes: list[Outcome] = []
        for text in (TASK, AGAIN, DELEGATE):
            outcomes.append(say(client, BINARIES, place, text, limit_s, again=bool(outcomes)))
            if outcomes[-1].status != 0:
                break
        report = judge(client, outcomes, (place.work / FILE).read_text(), exchanges)
        if record and not report.problems:
            write_fixture(client, exchanges, place)
    return report, outcomes


def main() -> None:
    options = argparse.ArgumentParser(prog="agents.run", description=__doc__)
    options.add_argument("--agent", choices=CLIENTS, action="append", help="only this one; may be repeated")
    options.add_argument("--record", action="store_true", help="write fixtures of the runs that are in order")
    options.add_argument("--limit", type=float, default=180.0, help="seconds for each agent (default 180)")
    options.add_argument("--verbose", action="store_true", help="show what each agent printed")
    given = options.parse_args()
    clients = [CLIENTS[name] for name in given.agent or CLIENTS]
    install(clients)
    console = Console(width=160)
    table = Table(
        "agent",
        "version",
        "requests",
        "turns + sub-agent's",
        "prompt tokens",
        "from cache",
        "session",
        "tools used",
        "result",
    )
    failed: dict[str, list[str]] = {}
    for client in clients:
        report, outcomes = run(client, given.limit, record=given.record)
        if report.problems:
            failed[client.name] = [*report.problems]
        if given.verbose or report.problems:
            for outcome in outcomes:
                console.print(f"[bold]{client.name}[/bold], {outcome.seconds:.0f} s", highlight=False)
                console.print(f"{outcome.stdout[-4000:]}\n{outcome.stderr[-4000:]}", markup=False, highlight=False)
        tokens = [turn.answer.prompt_tokens for turn in report.steps]
        table.add_row(
            client.name,
            client.version,
            str(report.requests),
            f"{len(report.steps)} + {len(report.delegated)}",
            f"{min(tokens)} to {max(tokens)}" if tokens else "-",
            f"{report.share:.1%}",
            ", ".join(client.session_headers) or "none sent",
            ", ".join(dict.fromkeys(report.called)),
            "ok" if not report.problems else f"{len(report.problems)} problems",
        )
    console.print(table)
    for name, problems in failed.items():
        for problem in problems:
            console.print(f"{name}: {problem}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
