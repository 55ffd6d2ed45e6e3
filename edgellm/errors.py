"""The errors a user can meet. Each message names the field, file or tensor that is wrong.

Library code raises one of these for bad input; anything else that escapes is a bug.
"""

from __future__ import annotations


class EdgeLLMError(Exception):
    """Base of every error that is the input's or the machine's fault, not a bug."""


class CheckpointError(EdgeLLMError):
    """A checkpoint's config, index, shard or tensor is missing, truncated or of the wrong shape or dtype."""


class BundleError(EdgeLLMError):
    """A bundle is missing files, was altered, or does not fit this machine or version."""


class ConfigError(EdgeLLMError):
    """A flag, recipe or setting is out of range or contradicts another."""


class RequestError(EdgeLLMError):
    """A request is invalid: the HTTP layer answers 4xx.

    Args:
        message: what is wrong, for a person.
        param: the request field at fault, e.g. ``"max_tokens"``.
        code: machine-readable code, e.g. ``"context_length_exceeded"``.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(EdgeLLMError):
    """The bounded queue is full: the HTTP layer answers 503 with Retry-After."""


class EngineDeadError(EdgeLLMError):
    """The engine thread stopped after a fault; no request can be served until restart."""


class ExecutionError(EdgeLLMError):
    """A model run failed. The slots that it touched hold nothing until they are reset or restored."""
