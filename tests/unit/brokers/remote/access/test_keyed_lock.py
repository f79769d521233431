"""One at a time for each name."""

from __future__ import annotations

import asyncio

import pytest

from brokers.remote.access.keyed_lock import KeyedLock


async def test_two_with_one_name_come_one_after_the_other():
    turns, seen = KeyedLock(), []

    async def change(name, mark):
        async with turns.of(name):
            seen.append(f"{mark} begins")
            await asyncio.sleep(0)
            seen.append(f"{mark} ends")

    await asyncio.gather(change("t", 1), change("t", 2), change("u", 3))
    assert seen.index("1 ends") < seen.index("2 begins")
    assert seen.index("3 begins") < seen.index("1 ends")
    assert len(turns) == 0


async def test_a_failure_and_a_waiter_that_gives_up_leave_nothing_behind():
    turns = KeyedLock()
    with pytest.raises(ValueError, match="no"):
        async with turns.of("t"):
            raise ValueError("no")
    assert len(turns) == 0
    async with turns.of("t"):
        waiting = asyncio.ensure_future(turns.of("t").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(turns) == 1
    assert len(turns) == 0
