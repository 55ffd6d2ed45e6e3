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

    A `top_k` of -1 is 0 here: off.

    Raises:
        CheckpointError: a value is of the wrong type or out of range.
    """
    given = Fields(generation_config, "generation_config.json")
    found = {name: value for name in NAMES if (value := given.get(name)) is not None}
    if not given.boolean("do_sample", True):
        found = {name: value for name, value in found.items() if name == "repetition_penalty"} | {"temperature": 0.0}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    try:
        SamplingParams(**found)
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error}") from error
    return found
