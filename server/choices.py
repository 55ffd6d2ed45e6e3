"""Several answers to one request: how many, and one engine request for each.

What must stay true: choice 0 is the answer that `n: 1` gives; choice i of a prompt does not depend on `n` or on the
other prompts of the request. Choices are numbered prompt by prompt, as the OpenAI API does.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from edgellm.runtime.types import Request
from edgellm.server.fields import Fields, bad_value

_SEED_BITS = 63


def read_n(fields: Fields, limit: int) -> int:
    """`n`: choices per prompt, 1 to `limit`."""
    return fields.integer("n", 1, limit) or 1


def fresh_seed() -> int:
    """A seed that no other request has."""
    return secrets.randbits(_SEED_BITS)


def check_total(prompts: int, n: int, limit: int, path: str) -> None:
    """Bound the generations of one request.

    Raises:
        RequestError: there would be more than `limit`; names `path`.
    """
    if prompts * n > limit:
        raise bad_value(path, f"asks for {prompts * n} choices in one request ({prompts} prompts, n {n}); {limit} fit")


def one_per_choice(request: Request, n: int, *, first: int = 0) -> tuple[Request, ...]:
    """The requests of choices `first` to `first + n - 1`, which are those of one prompt; seeds count up from its own.

    `request` has no constraint: that has state, so each choice needs its own.
    """
    assert n == 1 or request.constraint is None
    return tuple(
        replace(
            request,
            id=request.id if first + i == 0 else f"{request.id}-{first + i}",
            sampling=replace(request.sampling, seed=request.sampling.seed + i),
        )
        for i in range(n)
    )
