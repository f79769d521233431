"""processors.consume.arrivals: whether there is something to receive, looked at now and then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import TooManyRequests
from popgate.testing import MovableClock
from processors.consume.arrivals import ArrivalNotices
from processors.limits import Limits

CONTEXT = Context(client_id="me")


class Desk:
    """A noticing room before a broker where there is nothing, until `free` says so."""

    def __init__(self, **limits: Any) -> None:
        self.clock = MovableClock()
        self.looks = 0
        self.free = 0
        self.traits = SimpleNamespace(tells_deliveries=True)
        self.room = ArrivalNotices(self, self, self.clock, Limits(**limits), lambda *_, **__: None)  # type: ignore[arg-type]

    async def group(self, name: str) -> None:
        """Every group is known."""

    async def standing(self, group: str, topic: str) -> Any:
        self.looks += 1
        return SimpleNamespace(free=self.free, unread=0, receivers=3)

    def ask(self, wait_s: float) -> asyncio.Task[bool]:
        return asyncio.ensure_future(self.room.anything(CONTEXT, "T", "g", wait_s))

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 8)):
            self.clock.advance(0.125)
            for _ in range(8):
                await asyncio.sleep(0)


async def test_it_is_looked_until_there_is_something() -> None:
    desk = Desk()
    asked = desk.ask(20.0)
    await desk.pass_s(1.0)
    assert not asked.done()
    desk.free = 1
    await desk.pass_s(0.5)
    assert asked.done()
    assert await asked
    assert repr(desk.room) == "<ArrivalNotices waiting 0>"


async def test_nothing_is_told_when_the_time_is_over() -> None:
    desk = Desk()
    asked = desk.ask(2.0)
    await desk.pass_s(2.5)
    assert asked.done()
    assert not await asked


async def test_however_many_ask_it_is_looked_a_bounded_number_of_times() -> None:
    desk = Desk()
    asked = [desk.ask(19.0) for _ in range(2_000)]
    await desk.pass_s(1.0)
    begun = desk.looks
    await desk.pass_s(8.0)
    assert 2_000 <= desk.looks - begun <= 6_000
    await desk.pass_s(12.0)
    assert not any(await asyncio.gather(*asked))


async def test_only_so_many_may_wait() -> None:
    desk = Desk(max_waiting=1)
    asked = desk.ask(2.0)
    await desk.pass_s(0.125)
    with pytest.raises(TooManyRequests):
        await desk.room.anything(CONTEXT, "T", "g", 2.0)
    await desk.pass_s(2.5)
    assert not await asked


async def test_it_is_told_how_many_receive() -> None:
    assert await Desk().room.receivers(CONTEXT, "T", "g") == 3
