"""The sampling that a checkpoint recommends in its generation_config.json, kept in the bundle for servers to follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgellm.checkpoint.fields import Fields
from edgellm.decode.params import SamplingParams
from edgellm.errors import CheckpointError, RequestError

NAMES: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recommended_sampling(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `SamplingParams` that the file sets; temperature 0 where it asks for greedy decoding.

    Raises:
        CheckpointError: a value is of the wrong type or out of range.
    """
    given = Fields(generation_config, "generation_config.json")
    if not given.boolean("do_sample", True):
        return {"temperature": 0.0}
    found = {name: value for name in NAMES if (value := given.get(name)) is not None}
    try:
        SamplingParams(**found)
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error}") from error
    return found
