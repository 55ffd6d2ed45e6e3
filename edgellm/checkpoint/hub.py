"""From what a user writes (the name of a shipped checkpoint, a folder, or a Hugging Face repository id) to a local
checkpoint folder.

Downloads resume where they stopped (huggingface-hub keeps partial files). What must stay true: only the files that a
checkpoint of the family consists of are fetched, nothing executable; with `offline` no connection is made.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from edgellm.checkpoint.tokenizer_files import TOKENIZER_FILES
from edgellm.errors import CheckpointError, ConfigError
from edgellm.models import shipped

ALLOWED_FILES: Final = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    *TOKENIZER_FILES,
    "preprocessor_config.json",  # of the vision tower, which a quantized copy keeps
    "video_preprocessor_config.json",
    "processor_config.json",
)
_REPO_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(
    path_or_repo_id: str | Path,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
) -> Path:
    """The local folder of a checkpoint, downloaded first when it is a repository id.

    Args:
        path_or_repo_id: the name of a checkpoint that ships with the package (a folder of that name is ``./name``),
            an existing folder, else ``owner/name`` on the Hugging Face Hub.
        revision: branch, tag or commit to pin; the default branch when None. Not valid with a folder or
            a shipped checkpoint.
        offline: use only what is already downloaded.
        cache_dir: where downloads are kept; huggingface-hub's own cache by default.

    Raises:
        ConfigError: neither a folder nor a well-formed repository id, or a revision given with a folder.
        CheckpointError: the repository, revision or a connection is not there, or offline files are incomplete.
    """
    own = None if isinstance(path_or_repo_id, Path) else shipped(path_or_repo_id)
    folder = own or Path(path_or_repo_id)
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(f"revision {revision!r} has no meaning for the local folder {folder}")
        return folder
    repo = str(path_or_repo_id)
    if isinstance(path_or_repo_id, Path) or not _REPO_ID.fullmatch(repo):
        raise ConfigError(f"{repo!r} is neither an existing folder nor a repository id like 'owner/name'")
    at = f"{repo} at revision {revision}" if revision is not None else repo
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=offline,
                allow_patterns=list(ALLOWED_FILES),
            )
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo} is gated: accept its terms on the hub and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{repo} does not exist on the hub, or is private and needs `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repo} has no revision {revision!r}") from error
    except HFValidationError as error:
        raise ConfigError(f"{repo!r} is not a valid repository id: {error}") from error
    except LocalEntryNotFoundError as error:
        reason = "offline, and it is not in the cache" if offline else "the hub cannot be reached and it is not cached"
        raise CheckpointError(f"{at} is not available: {reason}") from error
    except Exception as error:  # connection (which HTTP library is the hub client's affair), disk, integrity
        raise CheckpointError(f"downloading {at} failed: {error}") from error
