"""Numbers of brokers, which a gateway knows without waiting for them but where a broker is new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from brokers.numbering import BROKERS, NumbersQueues
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import BrokerUnavailable, Unsupported
from popgate.queue_numbers import Numbered, QueueNumbers
from popgate.testing.clock import MovableClock
from processors.numbering import Numbering
from tests.support.waiting import until


class Keeper(NumbersQueues):
    """`hangs`: gives no answer; `away`: cannot be asked. `asked`: for which brokers it was."""

    name = "cluster"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.numbers = QueueNumbers()
        self.away = False
        self.hangs: asyncio.Event | None = None

    async def numbered(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        assert topic == BROKERS
        self.asked.append([broker for broker, _ in queues])
        if self.hangs is not None:
            await self.hangs.wait()
        if self.away:
            raise BrokerUnavailable("no name server can be reached")
        self.numbers = self.numbers.grown(queues)
        return self.numbers


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def numbering(keeper: Keeper, clock: MovableClock) -> Numbering:
    return Numbering(cast(Broker, keeper), clock, lambda *_args, **_more: None)


def names(numbers: QueueNumbers) -> list[str]:
    return [broker for broker, _ in numbers.queues]


async def told(one: Numbering, *brokers: str) -> None:
    """Ask over and over until they have numbers."""

    async def has_all() -> bool:
        await one.know(brokers)
        return one.latest.has_all((broker, 0) for broker in brokers)

    await until(has_all)


async def test_who_asks_first_waits_for_them_and_all_ask_once(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    keeper.hangs = asyncio.Event()
    waiting = [asyncio.ensure_future(one.know(["b", "a"])) for _ in range(3)]
    await until(lambda: keeper.asked)
    assert not any(task.done() for task in waiting)
    keeper.hangs.set()
    await asyncio.wait(waiting)
    assert names(one.latest) == ["a", "b"]
    assert keeper.asked == [["b", "a"]]


async def test_nobody_waits_for_longer_than_a_second(keeper: Keeper) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.hangs = asyncio.Event()
    waiting = asyncio.ensure_future(one.know(["a"]))
    await until(lambda: keeper.asked)
    clock.advance(1.1)
    await asyncio.wait([waiting])
    await one.know(["a"])
    assert names(one.latest) == []
    assert len(keeper.asked) == 1
    keeper.hangs.set()
    await told(one, "a")
    assert len(keeper.asked) == 1


async def test_a_broker_that_comes_is_waited_for_by_those_who_know_it(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    await one.know(["b"])
    keeper.hangs = asyncio.Event()
    waiting = asyncio.ensure_future(one.know(["a", "b"]))
    await until(lambda: len(keeper.asked) == 2)
    await one.know(["b"])
    assert not waiting.done()
    keeper.hangs.set()
    await asyncio.wait([waiting])
    assert names(one.latest) == ["b", "a"]


async def test_they_are_looked_at_again_two_minutes_later_and_stay_the_same_object(keeper: Keeper) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    await told(one, "a")
    before = one.latest
    clock.advance(119)
    await one.know(["a"])
    assert len(keeper.asked) == 1
    clock.advance(2)
    keeper.hangs = asyncio.Event()
    await one.know(["a"])  # nobody waits for it
    await until(lambda: len(keeper.asked) == 2)
    keeper.hangs.set()
    await told(one, "a")
    assert one.latest is before


async def test_what_cannot_be_had_is_said_once_and_tried_again(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.away = True
    with caplog.at_level(logging.WARNING):
        for asked in range(1, 4):
            await one.know(["a"])
            await until(lambda asked=asked: len(keeper.asked) == asked)
            await one.know(["a"])
            assert len(keeper.asked) == asked
            clock.advance(6)
    assert names(one.latest) == []
    assert [record.message.count("no name server") for record in caplog.records] == [1]
    keeper.away = False
    await told(one, "a")


async def test_what_was_asked_for_by_name_counts(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    await one.brokers(Context(), ["a"])
    await one.know(["a"])
    assert names(one.latest) == ["a"]
    assert len(keeper.asked) == 1


async def test_before_one_broker_alone_none_are_kept() -> None:
    class Alone:
        name = "embedded"

    one = Numbering(cast(Any, Alone()), MovableClock(), lambda *_args, **_more: None)
    assert not one.is_kept
    with pytest.raises(Unsupported):
        await one.brokers(Context(), ["a"])


async def test_nobody_waits_again_while_they_cannot_be_had(keeper: Keeper) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.away = True
    await one.know(["a"])
    clock.advance(6)
    keeper.hangs = asyncio.Event()
    await one.know(["a"])
    await until(lambda: len(keeper.asked) == 2)
    keeper.away = False
    keeper.hangs.set()
    await told(one, "a")
