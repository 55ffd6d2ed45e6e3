"""What a worker is told, and the environment that Dynamo's runtime reads.

What must stay true: a variable that the operator has set is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgellm.errors import ConfigError

# One machine without services: discovery by files, everything else over loopback.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
    "DYN_TCP_RPC_HOST": "127.0.0.1",
    "DYN_EVENT_PLANE_HOST": "127.0.0.1",
}
# How Dynamo's frontend reads the reasoning of a dialect; those that are absent have none.
REASONING_PARSERS: Final[Mapping[str, str]] = {
    "qwen3_coder": "qwen3",
    "hermes": "qwen3",
    "nemotron_deci": "nemotron_deci",
    "mistral": "mistral",
    "deepseek_v3": "deepseek_r1",
    "glm45": "glm45",
    "harmony": "gpt_oss",
}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Attributes:
    model: the name that clients ask for; `aliases` are further ones.
    namespace, component, endpoint: where the worker is found, as ``namespace.component.endpoint``.
    model_dir: folder for the files that the frontend reads; None: in the user's cache.
    prefill_chunk: tokens of one step of prefill.
    shutdown_grace_s: seconds that running requests have when the worker is told to stop.

    Raises:
        ConfigError: a name cannot be used.
    """

    model: str
    aliases: tuple[str, ...] = ()
    namespace: str = "dynamo"
    component: str = "backend"
    endpoint: str = "generate"
    model_dir: Path | None = None
    prefill_chunk: int = 512
    shutdown_grace_s: float = 10.0

    def __post_init__(self) -> None:
        for field in ("namespace", "component", "endpoint"):
            name = getattr(self, field)
            if not name or not all(char.isascii() and (char.isalnum() or char in "-_") for char in name):
                raise ConfigError(f"{field}: must be letters, digits, - and _, got {name!r}")

    @property
    def path(self) -> str:
        return f"{self.namespace}.{self.component}.{self.endpoint}"


def environment(environ: Mapping[str, str], discovery_dir: Path | None) -> dict[str, str]:
    """What has to be added to `environ` before the runtime is made.

    Args:
        discovery_dir: folder through which workers and frontends find each other; None: $DYN_FILE_KV, or Dynamo's own.

    Raises:
        ConfigError: `discovery_dir` is given, but discovery is not by files, or is set to another folder.
    """
    added = {name: value for name, value in ENVIRONMENT.items() if not environ.get(name)}
    if discovery_dir is None:
        return added
    backend = environ.get("DYN_DISCOVERY_BACKEND") or "file"
    if backend != "file":
        raise ConfigError(f"discovery_dir: DYN_DISCOVERY_BACKEND is {backend!r}, which uses no folder")
    folder = str(discovery_dir.resolve())
    if (other := environ.get("DYN_FILE_KV")) and Path(other).resolve() != Path(folder):
        raise ConfigError(f"discovery_dir: {folder} is asked for, but DYN_FILE_KV is {other}")
    return {**added, "DYN_FILE_KV": folder}
