"""The folder that Dynamo's frontend reads a model's tokenizer, template and ends from; a bundle lacks its config.json.

What must stay true: the same bundle always gives the same bytes, because workers of one model are compared by them, and
the same path, because the frontend reads it; a folder under its final name is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edgellm.checkpoint.tokenizer_files import tokenizer_files
from edgellm.engine.bundle import Bundle
from edgellm.errors import ConfigError

_ARCHITECTURE: Final = "Qwen3_5ForCausalLM"  # as checkpoints of the one supported text model say
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"  # the frontend insists on one


def model_folder(bundle: Bundle, parent: Path | None) -> Path:
    """Make the folder for a bundle, or find it as it was made before.

    Args:
        parent: where; None: ``edgellm/dynamo`` in the user's cache folder.

    Raises:
        ConfigError: it cannot be written.
    """
    files = _files(bundle)
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + data for name, data in files.items())).hexdigest()[:16]
    folder = (_cache() if parent is None else parent.resolve()) / digest
    try:
        if not folder.is_dir():
            _write(folder, files)
    except OSError as error:
        raise ConfigError(f"model_dir: {folder} cannot be written: {error.strerror}") from error
    return folder


def _files(bundle: Bundle) -> dict[str, bytes]:
    manifest = bundle.manifest
    config = {
        "architectures": [_ARCHITECTURE],
        **manifest.spec.to_dict(),
        "eos_token_id": list(manifest.eos_token_ids),
    }
    files = {path.name: path.read_bytes() for path in tokenizer_files(bundle.path)}
    return {_TOKENIZER_CONFIG: b"{}\n", **files, "config.json": json.dumps(config, indent=1).encode() + b"\n"}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgellm" / "dynamo"


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        made.chmod(0o755)
        for name, data in files.items():
            (made / name).write_bytes(data)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another worker was quicker, with the same files
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
