"""What a request must fulfil before it is queued. Everything that would fail later on the engine thread fails here."""

from __future__ import annotations

import math

import numpy as np

from edgellm.cache import TokenKey
from edgellm.cache.retention import RangeFields, check_duration, check_priority, check_ranges
from edgellm.engine.base import ExecutorInfo
from edgellm.errors import RequestError
from edgellm.runtime.types import Request


def check_request(request: Request, info: ExecutorInfo) -> TokenKey:
    """The prompt, packed.

    Raises:
        RequestError: naming the field; code ``context_length_exceeded`` when the prompt leaves no room for one token.
    """
    size = len(request.prompt)
    if size == 0:
        raise RequestError("prompt is empty: at least one token is needed", param="prompt", code="invalid_value")
    if size + 1 > info.max_tokens:
        raise RequestError(
            f"prompt has {size} tokens; the context of {info.max_tokens} must also hold at least one generated token",
            param="prompt",
            code="context_length_exceeded",
        )
    try:
        key = TokenKey(request.prompt)
    except (OverflowError, TypeError) as error:
        raise RequestError(f"prompt: {error}", param="prompt", code="invalid_value") from error
    highest = int(np.frombuffer(key.data, ">u4").max())
    if highest >= info.vocab_size:
        raise RequestError(
            f"prompt: {highest} is not a token of this model (0 to {info.vocab_size - 1})",
            param="prompt",
            code="invalid_value",
        )
    request.sampling.check_vocab(info.vocab_size)
    predicted = request.prediction
    if predicted is not None and not (predicted.least == 0 and predicted.greatest < info.vocab_size):
        raise RequestError(f"prediction: tokens must be 0 to {info.vocab_size - 1}", param="prediction")
    check_ranges(request.cache.ranges, "cache.ranges", RangeFields())
    check_priority(request.cache.decode_priority, "cache.decode_priority")
    check_duration(request.cache.decode_duration_s, "cache.decode_duration_s")
    if request.deadline_s is not None and not (math.isfinite(request.deadline_s) and request.deadline_s > 0):
        raise RequestError(f"deadline_s must be above 0, got {request.deadline_s}", param="deadline_s")
    stable = request.stable_lengths
    if stable is not None and not all(0 <= length <= size for length in stable):
        raise RequestError(f"stable_lengths must be within the prompt of {size} tokens", param="stable_lengths")
    return key
