"""The agents: packages, commands, settings. Each runs with an empty home, no telemetry, and no questions asked."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .script import BEFORE, FILE
from .serving import CONTEXT, MODEL


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens. `home` and `work` are fresh folders; `server` has no path."""

    server: str
    home: Path
    work: Path


@dataclass(frozen=True, slots=True)
class Client:
    """Attributes:
    package, version: in the npm registry.
    binary: name of its command.
    arguments: of the command that brings it a text, in a new session or in the last one again.
    environment: besides PATH and HOME.
    prepare: writes its settings.
    edits: whether a call (tool, arguments) is the agent's own way to edit a file.
    session_headers: that name its session, a sub-agent's own first; empty: it sends none.
    interrupts: tools behind whose calls the prompt parts from what the model wrote: the agent sends the call back
        otherwise, or adds a text of the user to its result.
    probes: (method, path, status) of requests that need not succeed.
    """

    name: str
    package: str
    version: str
    binary: str
    arguments: Callable[[Place, str, bool], list[str]]
    environment: Callable[[Place], dict[str, str]]
    prepare: Callable[[Place], None]
    edits: Callable[[str, str], bool]
    session_headers: tuple[str, ...]
    interrupts: frozenset[str] = frozenset()
    probes: frozenset[tuple[str, str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left. `status` None: it did not end in time."""

    status: int | None
    stdout: str
    stderr: str
    seconds: float


def prepare(client: Client, place: Place) -> None:
    """The file of the task, and the agent's settings."""
    place.home.mkdir()
    place.work.mkdir()
    (place.work / FILE).write_text(f"{BEFORE}\n")
    client.prepare(place)


def say(client: Client, binaries: Path, place: Place, text: str, limit_s: float, *, again: bool = False) -> Outcome:
    """Give the agent `text` and wait until it is done; `again`: in the session of the last time."""
    environment = {
        "PATH": os.pathsep.join((str(binaries), os.environ["PATH"])),
        "HOME": str(place.home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_PROXY": "127.0.0.1",
        **client.environment(place),
    }
    began = time.monotonic()
    process = subprocess.Popen(
        [binaries / client.binary, *client.arguments(place, text, again)],
        cwd=place.work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        stdout, stderr = process.communicate()
        status = None
    return Outcome(status, stdout, stderr, time.monotonic() - began)


def _nothing(_: Place) -> None:
    pass


def _claude(place: Place) -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": place.server,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",  # or root may not skip its questions
    }


def _codex(place: Place, text: str, again: bool) -> list[str]:
    provider = f'{{name="local",base_url="{place.server}/v1",wire_api="responses",env_key="LOCAL_KEY"}}'
    return [
        *("exec", *(("resume", "--last") if again else ())),
        *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-c", f"model_providers.local={provider}", "-c", "model_provider=local", "-c", 'web_search="disabled"'),
        *("-m", MODEL, text),
    ]


def _codex_with_catalog(place: Place, text: str, again: bool) -> list[str]:
    command, *rest = _codex(place, text, again)
    return [command, "-c", f'model_catalog_json="{place.home / "catalog.json"}"', *rest]


def _codex_catalog(place: Place) -> None:
    """What Codex knows of a model by its name; without an entry it falls back to a profile without `apply_patch`."""
    model = {
        "slug": MODEL,
        "display_name": MODEL,
        "description": "A local model.",
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": [{"effort": "medium", "description": "The usual."}],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "base_instructions": "You are a coding agent.",
        "supports_reasoning_summaries": True,
        "support_verbosity": False,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "supports_parallel_tool_calls": True,
        "context_window": CONTEXT,
        "experimental_supported_tools": [],
    }
    (place.home / "catalog.json").write_text(json.dumps({"models": [model]}))


def _opencode_settings(place: Place) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.server}/v1", "apiKey": "none"},
        "models": {MODEL: {}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"local": provider},
        "autoupdate": False,
        "share": "disabled",
    }
    (place.work / "opencode.json").write_text(json.dumps(settings))


_CODEX: Final = Client(
    name="codex",
    package="@openai/codex",
    version="0.171.0",
    binary="codex",
    arguments=_codex,
    environment=lambda _: {"LOCAL_KEY": "none"},
    prepare=_nothing,
    edits=lambda tool, arguments: tool == "exec_command" and "apply_patch" in arguments,  # it sees to that itself
    session_headers=("thread-id",),
    interrupts=frozenset({"wait_agent"}),  # a notice from the sub-agent
)
CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            package="@anthropic-ai/claude-code",
            version="2.1.197",
            binary="claude",
            arguments=lambda _, text, again: [
                *(("-c",) if again else ()),
                "-p",
                text,
                "--dangerously-skip-permissions",
            ],
            environment=_claude,
            prepare=_nothing,
            edits=lambda tool, _: tool == "Edit",
            session_headers=("x-claude-code-agent-id", "x-claude-code-session-id"),
            interrupts=frozenset({"Edit"}),  # comes back with the default of `replace_all`, in front
            probes=frozenset({("HEAD", "/", 404)}),
        ),
        _CODEX,
        replace(
            _CODEX,
            name="codex-catalog",
            arguments=_codex_with_catalog,
            prepare=_codex_catalog,
            edits=lambda tool, _: tool == "apply_patch",
        ),
        Client(
            name="opencode",
            package="opencode-ai",
            version="1.18.33",
            binary="opencode",
            arguments=lambda _, text, again: ["run", *(("-c",) if again else ()), "-m", f"local/{MODEL}", text],
            environment=lambda _: {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
            prepare=_opencode_settings,
            edits=lambda tool, _: tool == "edit",
            session_headers=("x-session-id",),
        ),
        Client(
            name="qwen-code",
            package="@qwen-code/qwen-code",
            version="0.15.10",
            binary="qwen",
            arguments=lambda _, text, again: [
                *(("-c",) if again else ()),
                *("--auth-type", "openai", "--yolo", "--telemetry=false", "-p", text),
            ],
            environment=lambda place: {
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": f"{place.server}/v1",
                "OPENAI_MODEL": MODEL,
                "QWEN_CODE_DISABLE_TELEMETRY": "1",
            },
            prepare=_nothing,
            edits=lambda tool, _: tool == "edit",
            session_headers=(),
        ),
    )
}
