"""Lines of clients that wait, woken one by one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from brokers.remote.consume.wait_queue import GONE, NOTHING, LineKey, WaitQueue
from popgate.errors import TooManyRequests

KEY = LineKey("T", "G", False)


@pytest.fixture
def waiters(clock) -> WaitQueue:
    return WaitQueue(clock, 100)


def stand(waiters: WaitQueue, clock, *, key: LineKey = KEY, seconds: float = 20.0, first: bool = False):
    """A waiter, and the task that waits."""
    waiter = waiters.join(key, clock.monotonic() + seconds, first=first)
    return waiter, asyncio.ensure_future(waiters.wait(waiter))


async def test_who_waits_longest_is_woken_first_and_alone(waiters, clock):
    (first, one), (_, two) = stand(waiters, clock), stand(waiters, clock)
    look = first.line.wake("a")
    assert await one == "a"
    assert not two.done()
    first.looked(5)
    assert await look == 5
    assert first.line.wake("b") is not None
    assert await two == "b"
    assert first.line.wake("b") is None
    assert len(waiters) == 0


async def test_who_stood_there_before_stands_first(waiters, clock):
    stand(waiters, clock)
    _, again = stand(waiters, clock, first=True)
    again_line = waiters.join(KEY, clock.monotonic() + 1).line
    again_line.wake("a")
    assert await again == "a"


async def test_one_timer_ends_everybody_at_his_time(waiters, clock):
    _, late = stand(waiters, clock, seconds=9.0)
    _, soon = stand(waiters, clock, seconds=3.0)
    clock.advance(3.0)
    assert await soon is None
    assert not late.done()
    clock.advance(6.0)
    assert await late is None
    assert repr(waiters) == "<WaitQueue 0 in 0 lines>"


async def test_a_woken_waiter_that_is_cancelled_says_that_it_went(waiters, clock):
    waiter, task = stand(waiters, clock)
    await asyncio.sleep(0)
    look = waiter.line.wake("a")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert await look == GONE
    assert len(waiters) == 0


async def test_a_waiter_that_is_cancelled_leaves_its_line(waiters, clock):
    waiter, task = stand(waiters, clock)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert waiter.line.wake("a") is None
    assert repr(waiters) == "<WaitQueue 0 in 0 lines>"


async def test_looking_twice_is_told_once(waiters, clock):
    waiter, task = stand(waiters, clock)
    look = waiter.line.wake("a")
    waiter.looked(NOTHING)
    waiter.looked(GONE)
    assert await look == NOTHING
    await task


async def test_a_change_wakes_those_whom_it_concerns(waiters, clock):
    tasks = [
        stand(waiters, clock, key=LineKey(topic, group, False))[1] for topic in ("T", "U") for group in "GH"
    ]
    waiters.wake_all(topic="T", group="H")
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [False, True, False, False]
    waiters.wake_all(group="G")
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, True, False]
    waiters.end_all()
    assert await asyncio.gather(*tasks) == ["", "", "", None]


async def test_lines_are_bounded(waiters, clock):
    for _ in range(100):
        stand(waiters, clock)
    with pytest.raises(TooManyRequests):
        waiters.join(KEY, clock.monotonic() + 1)
    waiters.end_all()


async def test_ends_of_those_who_were_woken_are_swept(clock):
    waiters = WaitQueue(clock, 100)
    for _ in range(3_000):
        waiter, task = stand(waiters, clock, seconds=600.0)
        waiter.line.wake("a")
        await task
    assert len(waiters._ends) <= 1_100
