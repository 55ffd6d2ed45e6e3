"""One timer notices a write that takes too long, and no other."""

import asyncio

from edgellm.server.write_watch import WriteWatch

LIMIT_S = 0.02


def stalls(*busy_s: float, idle_s: float = 0.0) -> int:
    """How often the watch called, over writes of these lengths with pauses between."""

    async def run() -> int:
        calls: list[None] = []
        watch = WriteWatch(LIMIT_S, lambda: calls.append(None))
        for seconds in busy_s:
            await asyncio.sleep(idle_s)
            with watch:
                await asyncio.sleep(seconds)
        watch.close()
        await asyncio.sleep(3 * LIMIT_S)
        return len(calls)

    return asyncio.run(run())


def test_a_write_that_hangs_is_noticed_once() -> None:
    assert stalls(20 * LIMIT_S) == 1
    assert stalls(0, 0, 20 * LIMIT_S) == 1


def test_silence_between_writes_is_no_stall() -> None:
    assert stalls(0, 0, idle_s=3 * LIMIT_S) == 0


def test_nothing_is_noticed_after_the_end() -> None:
    assert stalls() == 0


def test_overlapping_writes_count_from_the_first() -> None:
    async def run() -> bool:
        stalled = asyncio.Event()
        watch = WriteWatch(LIMIT_S, stalled.set)
        with watch:
            await asyncio.sleep(LIMIT_S / 4)
            with watch:
                await asyncio.wait_for(stalled.wait(), 5)
        watch.close()
        return stalled.is_set()

    assert asyncio.run(run())
