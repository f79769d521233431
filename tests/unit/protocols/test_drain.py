"""Calling back those who wait."""

from __future__ import annotations

import asyncio

import pytest

from protocols.drain import DrainReport, InFlightCalls, LongPolls


async def test_a_wait_gives_what_its_work_gives() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await LongPolls().wait(work()) == 7


async def test_those_who_wait_are_called_back_and_go_on() -> None:
    waits = LongPolls()
    released: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            released.append("work")

    async def request() -> str:
        assert await waits.wait(work()) is None
        await asyncio.sleep(0)
        return "answered"

    task = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    waits.end()
    waits.end()
    assert await task == "answered"
    assert released == ["work"]
    assert task.cancelling() == 0


async def test_after_the_end_nobody_waits() -> None:
    waits = LongPolls()
    waits.end()
    assert await waits.wait(asyncio.Event().wait()) is None


async def test_a_cancelled_request_stays_cancelled() -> None:
    waits = LongPolls()
    for both in (False, True):
        task = asyncio.ensure_future(waits.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        if both:
            waits.end()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_work_that_is_done_when_it_is_called_back_keeps_its_result() -> None:
    waits = LongPolls()

    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 5
        return 0

    async def request() -> int | None:
        result = await waits.wait(stubborn())
        await asyncio.sleep(0)
        return result

    task = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    waits.end()
    assert await task == 5
    assert task.cancelling() == 0


def test_a_farewell_tells_what_ended_well_and_what_was_cut_off() -> None:
    under_way = InFlightCalls()
    calls = [object() for _ in range(6)]
    for number, call in enumerate(calls[:5]):
        under_way.requests[call] = f"peer {number % 2}"
    under_way.streams["stream"] = "peer 2"
    under_way.streams["deaf"] = "peer 0"
    under_way.over(calls[4])
    under_way.drain()
    under_way.over(calls[0])
    under_way.requests[calls[5]] = "peer 0"
    under_way.over(calls[5])
    under_way.stream_over("stream")
    under_way.cut()
    under_way.over(calls[1])
    under_way.cut()
    assert under_way.farewell() == DrainReport(connections=3, streams=1, finished=2, cut_off=3)
    assert under_way.farewell() + DrainReport(1, 1, 1, 1) == DrainReport(4, 2, 3, 4)


async def test_streams_are_waited_for_until_they_have_ended_or_for_so_long() -> None:
    under_way = InFlightCalls()
    await under_way.streams_over(60.0)
    under_way.streams["stream"] = "peer 2"
    under_way.requests["call"] = "peer 2"
    await under_way.streams_over(0.001)
    asyncio.get_running_loop().call_soon(under_way.stream_over, "stream")
    await under_way.streams_over(60.0)
    under_way.cut()
    asyncio.get_running_loop().call_soon(under_way.over, "call")
    await under_way.all_over(60.0)
    assert under_way.farewell() == DrainReport(cut_off=1)
