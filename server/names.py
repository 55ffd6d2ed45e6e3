"""Model names, ids and fingerprints."""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache
from importlib.metadata import version

from edgellm.server.errors import ApiError
from edgellm.server.fields import Fields
from edgellm.server.settings import ServerSettings


def check_model(fields: Fields, settings: ServerSettings) -> str:
    """The name to answer under. A request without `model` means the served one.

    Raises:
        ApiError: 404 ``model_not_found`` for any other name.
    """
    name = fields.string("model")
    if name is None:
        return settings.model
    if name not in settings.names:
        raise unknown_model(name)
    return name


def unknown_model(name: str) -> ApiError:
    return ApiError(404, f"model {name[:100]!r} does not exist here", param="model", code="model_not_found")


def new_id(prefix: str) -> str:
    """``prefix-<24 hex digits>``, unique; a prefix that ends with ``_`` goes without the dash."""
    return f"{prefix}{'' if prefix.endswith('_') else '-'}{secrets.token_hex(12)}"


@lru_cache(maxsize=8)
def system_fingerprint(weights: str) -> str:
    """``fp_<10 hex digits>``: equal seeds give equal answers while it stays the same.

    Args:
        weights: `ExecutorInfo.fingerprint`.
    """
    return "fp_" + hashlib.sha256(f"{version('edgellm')}:{weights}".encode()).hexdigest()[:10]
