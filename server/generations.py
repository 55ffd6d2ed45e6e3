"""The generations that answer one HTTP request, read as one stream.

What must stay true: all of them run or none; outputs of one come in their order; a reader that is slow holds up no
engine (see `edgellm.runtime.generation`); when reading ends, for whatever reason, `cancel` leaves nothing running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Self

from edgellm.runtime.generation import Generation
from edgellm.runtime.types import Output, Request


class Generations:
    """Generations numbered from 0; `id` is that of the first."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self.id = generations[0].id

    @classmethod
    def submit(cls, submit: Callable[[Request], Generation], requests: Iterable[Request]) -> Self:
        """Start all; when one is refused, those before it are cancelled and the error goes on."""
        started: list[Generation] = []
        try:
            for request in requests:
                started.append(submit(request))
        except BaseException:
            for generation in started:
                generation.cancel()
            raise
        return cls(started)

    def __len__(self) -> int:
        return len(self._generations)

    def cancel(self, index: int | None = None) -> None:
        """Stop one, or all."""
        for generation in self._generations if index is None else (self._generations[index],):
            generation.cancel()

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """(number, output) as they come, until every generation has ended. Close it when leaving early."""
        if len(self._generations) == 1:
            async for output in self._generations[0]:
                yield 0, output
            return
        ready: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue(1)
        readers = [
            asyncio.create_task(_read(index, generation, ready)) for index, generation in enumerate(self._generations)
        ]
        try:
            left = len(readers)
            while left:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for reader in readers:
                reader.cancel()


async def _read(
    index: int, generation: Generation, ready: asyncio.Queue[tuple[int, Output] | Exception | None]
) -> None:
    """Hand on every output, then None. While `ready` is full, what comes meanwhile is merged into the next output."""
    try:
        async for output in generation:
            await ready.put((index, output))
        await ready.put(None)
    except Exception as error:
        await ready.put(error)
