"""Numbers of brokers, which a gateway knows without waiting for them but where a broker is new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from brokers.capabilities import BrokerPlace, TellsBrokers
from brokers.numbering import BROKERS, MOST_BROKERS, NumbersQueues
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import BrokerUnavailable, Unsupported
from popgate.ids.queue_numbers import Numbered, QueueNumbers, may_be_numbered
from popgate.testing.clock import MovableClock
from processors.classic.queue_numbers import QueueNumbering
from tests.support.waiting import until


class Keeper(NumbersQueues, TellsBrokers):
    """`hangs`: gives no answer; `away`: cannot be asked. `asked`: for which brokers it was.

    `knows`: until it is set nobody says which brokers there are.
    """

    name = "cluster"
    capability = Broker.capability

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answered = 0
        self.numbers = QueueNumbers()
        self.away = False
        self.hangs: asyncio.Event | None = None
        self.knows: asyncio.Event | None = None

    async def numbered(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        assert topic == BROKERS
        self.asked.append([broker for broker, _ in queues])
        if self.hangs is not None:
            await self.hangs.wait()
        if self.away:
            raise BrokerUnavailable("no name server can be reached")
        self.numbers = self.numbers.grown(one for one in queues if may_be_numbered(one[0]))
        self.answered += 1
        return QueueNumbers(self.numbers.queues)  # what is read is another object each time

    async def known_brokers(self) -> Sequence[BrokerPlace]:
        if self.knows is not None:
            await self.knows.wait()
        return [BrokerPlace("one", "a"), BrokerPlace("one", "b")]


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def numbering(keeper: Keeper, clock: MovableClock) -> QueueNumbering:
    return QueueNumbering(cast(Broker, keeper), clock, lambda *_args, **_more: None)


def names(numbers: QueueNumbers) -> list[str]:
    return [broker for broker, _ in numbers.queues]


async def told(one: QueueNumbering, *brokers: str) -> None:
    """Ask over and over until they have numbers."""

    async def has_all() -> bool:
        await one.refresh(brokers)
        return one.latest.has_all((broker, 0) for broker in brokers)

    await until(has_all)


async def test_who_asks_first_waits_for_them_and_all_ask_once(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    keeper.hangs = asyncio.Event()
    waiting = [asyncio.ensure_future(one.refresh(["b", "a"])) for _ in range(3)]
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
    waiting = asyncio.ensure_future(one.refresh(["a"]))
    await until(lambda: keeper.asked)
    clock.advance(1.1)
    await asyncio.wait([waiting])
    await one.refresh(["a"])
    assert names(one.latest) == []
    assert len(keeper.asked) == 1
    keeper.hangs.set()
    await told(one, "a")
    assert len(keeper.asked) == 1


async def test_a_broker_that_comes_is_waited_for_by_those_who_know_it(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    await one.refresh(["b"])
    keeper.hangs = asyncio.Event()
    waiting = asyncio.ensure_future(one.refresh(["a", "b"]))
    await until(lambda: len(keeper.asked) == 2)
    await one.refresh(["b"])
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
    await one.refresh(["a"])
    assert len(keeper.asked) == 1
    clock.advance(2)
    keeper.hangs = asyncio.Event()
    await one.refresh(["a"])  # nobody waits for it
    await until(lambda: len(keeper.asked) == 2)
    keeper.hangs.set()
    await until(lambda: keeper.answered == 2)
    assert one.latest is before


async def test_what_cannot_be_had_is_said_once_and_tried_again(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.away = True
    with caplog.at_level(logging.WARNING):
        for asked in range(1, 4):
            await one.refresh(["a"])
            await until(lambda asked=asked: len(keeper.asked) == asked)
            await one.refresh(["a"])
            assert len(keeper.asked) == asked
            clock.advance(6)
    assert names(one.latest) == []
    assert [record.message.count("no name server") for record in caplog.records] == [1]
    keeper.away = False
    await told(one, "a")


async def test_what_was_asked_for_by_name_counts(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    await one.brokers(Context(), ["a"])
    await one.refresh(["a"])
    assert names(one.latest) == ["a"]
    assert len(keeper.asked) == 1


async def test_before_one_broker_alone_none_are_kept() -> None:
    class Alone:
        name = "embedded"
        capability = Broker.capability

    one = QueueNumbering(cast(Any, Alone()), MovableClock(), lambda *_args, **_more: None)
    assert not one.is_kept
    with pytest.raises(Unsupported):
        await one.brokers(Context(), ["a"])


async def test_nobody_waits_again_while_they_cannot_be_had(keeper: Keeper) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.away = True
    await one.refresh(["a"])
    clock.advance(6)
    keeper.hangs = asyncio.Event()
    await one.refresh(["a"])
    await until(lambda: len(keeper.asked) == 2)
    keeper.away = False
    keeper.hangs.set()
    await told(one, "a")


class TestABrokerThatComesWhileNumbersAreAskedFor:
    async def test_is_asked_for_next_and_waited_for(self, keeper: Keeper) -> None:
        one = numbering(keeper, MovableClock())
        keeper.hangs = asyncio.Event()
        first = asyncio.ensure_future(one.refresh(["b"]))
        await until(lambda: keeper.asked)
        second = asyncio.ensure_future(_known(one, "a", "b"))
        third = asyncio.ensure_future(_known(one, "c", "b"))
        await until(lambda: len(one._next) == 3)
        keeper.hangs.set()
        await asyncio.wait([first, second, third])
        assert set(await second) >= {"a", "b"}
        assert set(await third) >= {"c", "b"}
        assert [sorted(asked) for asked in keeper.asked] == [["b"], ["a", "b", "c"]]

    async def test_is_waited_for_though_nobody_waits_for_the_rest(self, keeper: Keeper) -> None:
        clock = MovableClock()
        one = numbering(keeper, clock)
        await one.refresh(["b"])
        keeper.hangs = asyncio.Event()
        clock.advance(121)
        await one.refresh(["b"])
        await until(lambda: len(keeper.asked) == 2)
        waiting = asyncio.ensure_future(_known(one, "a", "b"))
        await until(lambda: one._next)
        keeper.hangs.set()
        assert await waiting == ["b", "a"]

    async def test_makes_nobody_wait_for_longer_than_a_second(self, keeper: Keeper) -> None:
        clock = MovableClock()
        one = numbering(keeper, clock)
        keeper.hangs = asyncio.Event()
        first = asyncio.ensure_future(one.refresh(["b"]))
        await until(lambda: keeper.asked)
        clock.advance(0.6)
        second = asyncio.ensure_future(one.refresh(["a", "b"]))
        await until(lambda: one._next)
        clock.advance(0.6)
        await asyncio.wait([first, second])
        assert names(one.latest) == []
        keeper.hangs.set()
        await told(one, "a", "b")


async def _known(one: QueueNumbering, *brokers: str) -> list[str]:
    """Those that have numbers when the wait is over."""
    await one.refresh(brokers)
    return names(one.latest)


class TestBeforeADoorServes:
    async def test_a_name_server_without_an_answer_is_waited_for(self, keeper: Keeper) -> None:
        clock = MovableClock()
        one = numbering(keeper, clock)
        keeper.hangs = asyncio.Event()
        priming = asyncio.ensure_future(_primed(one))
        await until(lambda: keeper.asked)
        clock.advance(4)
        keeper.hangs.set()
        assert await priming == ["a", "b"]

    @pytest.mark.parametrize("what", ["hangs", "knows"], ids=["no numbers", "no brokers"])
    async def test_but_not_for_longer_than_five_seconds(self, keeper: Keeper, what: str) -> None:
        clock = MovableClock()
        one = numbering(keeper, clock)
        setattr(keeper, what, asyncio.Event())
        priming = asyncio.ensure_future(_primed(one))
        await until(lambda: one._task)
        clock.advance(5.1)
        assert await priming == []
        await one.stop()

    async def test_nothing_is_waited_for_where_none_can_be_had(self, keeper: Keeper) -> None:
        clock = MovableClock()
        one = numbering(keeper, clock)
        keeper.away = True
        assert await _primed(one) == []
        keeper.away = False
        clock.advance(6)
        await told(one, "a", "b")
        assert await _primed(one) == ["a", "b"]
        assert len(keeper.asked) == 2


async def _primed(one: QueueNumbering) -> list[str]:
    await one.prime()
    return names(one.latest)


async def test_brokers_that_can_have_no_number_are_not_asked_for(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    await one.refresh(["a", "[[[", "x" * 256])
    await one.refresh(["a", "[[[", "x" * 256])
    assert names(one.latest) == ["a"]
    assert len(keeper.asked) == 1
    keeper.numbers = QueueNumbers([(f"broker-{number}", 0) for number in range(MOST_BROKERS)])
    await one.brokers(Context(), [])
    await one.refresh(["b"])
    assert len(keeper.asked) == 2


async def test_one_that_stops_lets_everybody_go_and_asks_for_nothing_more(keeper: Keeper) -> None:
    clock = MovableClock()
    one = numbering(keeper, clock)
    keeper.hangs = asyncio.Event()
    waiting = asyncio.ensure_future(one.refresh(["a"]))
    await until(lambda: keeper.asked)
    await one.stop()
    await waiting
    assert one._task is None
    assert clock.until_next() is None
    keeper.hangs.set()
    await one.refresh(["a"])
    assert (len(keeper.asked), keeper.answered) == (1, 0)


async def test_one_that_is_stopped_before_it_asked(keeper: Keeper) -> None:
    one = numbering(keeper, MovableClock())
    one._have_wait(1.0)
    one._ask(["a"])
    await one.stop()
    assert keeper.asked == []
    assert one._ready.is_set()
