"""One question per broker and line is under way while somebody waits; arrivals wake one."""

from __future__ import annotations

import asyncio

import pytest

from brokers.remote.consume.arrival_watch import LONGEST_S, ArrivalWatch
from brokers.remote.consume.wait_queue import GONE, NOTHING, LineKey, WaitQueue
from popgate.errors import BrokerUnavailable, Forbidden, TopicNotFound

KEY = LineKey("T", "G", False)


class Brokers:
    """Questions of brokers, answered by the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, asyncio.Future[bool]]] = []

    async def ask(self, line, broker, patience_s):
        future = asyncio.get_running_loop().create_future()
        self.asked.append((broker, patience_s, future))
        return await future

    def open(self) -> list[asyncio.Future[bool]]:
        return [future for _, _, future in self.asked if not future.done()]

    def answer(self, there: bool) -> None:
        self.open()[0].set_result(there)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def noticing(clock, brokers):
    waiters = WaitQueue(clock, 100)
    one = ArrivalWatch(clock, waiters, brokers.ask)
    yield one
    waiters.end_all()
    await one.stop()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Client:
    """Waits; once woken it says what it found when the test says so."""

    def __init__(self, noticing, clock, *, names=("a",), seconds=20.0, key=KEY, is_back=False) -> None:
        self.waiter = noticing._waiters.join(key, clock.monotonic() + seconds, first=is_back)
        noticing.watch(self.waiter, names)
        self.task = asyncio.ensure_future(noticing._waiters.wait(self.waiter))

    @property
    def woken(self) -> bool:
        return self.task.done() and self.task.result() is not None


async def test_there_is_one_question_per_broker_however_many_wait(noticing, brokers, clock):
    clients = [Client(noticing, clock, names=("a", "b")) for _ in range(10)]
    await turns()
    assert sorted(broker for broker, _, _ in brokers.asked) == ["a", "b"]
    assert len(noticing) == 2
    assert not any(client.woken for client in clients)


async def test_no_question_is_longer_than_five_seconds_or_than_somebody_waits(noticing, brokers, clock):
    Client(noticing, clock, seconds=20.0)
    Client(noticing, clock, seconds=2.0, key=LineKey("U", "G", False))
    await turns()
    assert sorted(patience for _, patience, _ in brokers.asked) == [2.0, LONGEST_S]
    assert LONGEST_S == 5.0


async def test_a_question_is_asked_anew_while_somebody_waits_and_then_no_more(noticing, brokers, clock):
    client = Client(noticing, clock, seconds=20.0)
    for number in range(1, 4):
        await turns()
        assert len(brokers.asked) == number
        clock.advance(LONGEST_S)
        brokers.answer(False)
    await turns()
    client.task.cancel()
    await turns()
    brokers.answer(False)
    await turns()
    assert len(brokers.asked) == 4
    assert len(noticing) == 0


async def test_scenario_26_an_arrival_wakes_one_and_the_next_question_waits_for_it(noticing, brokers, clock):
    clients = [Client(noticing, clock) for _ in range(3)]
    await turns()
    brokers.answer(True)
    await turns()
    assert [client.woken for client in clients] == [True, False, False]
    assert brokers.open() == []  # it would be told the same again
    clients[0].waiter.looked(0)
    await turns()
    assert len(brokers.open()) == 1
    assert [client.woken for client in clients] == [True, False, False]


async def test_a_woken_client_that_vanishes_passes_it_on_at_once(noticing, brokers, clock):
    clients = [Client(noticing, clock) for _ in range(3)]
    await turns()
    brokers.answer(True)
    await turns()
    clients[0].waiter.looked(GONE)
    await turns()
    assert [client.woken for client in clients] == [True, True, False]
    assert brokers.open() == []


async def test_what_there_is_more_is_for_as_many_as_it_feeds(noticing, brokers, clock):
    clients = [Client(noticing, clock) for _ in range(10)]
    await turns()
    brokers.answer(True)
    await turns()
    clients[0].waiter.looked(3 * 32)
    await turns()
    assert sum(client.woken for client in clients) == 4


async def test_what_cannot_be_had_is_not_asked_for_in_a_circle(noticing, brokers, clock):
    client = Client(noticing, clock)
    rests = []
    for _ in range(8):
        await turns()
        brokers.answer(True)
        await turns()
        client.waiter.looked(NOTHING)
        client = Client(noticing, clock)
        await turns()
        rest = 0.0
        while not brokers.open():
            clock.advance(0.01)
            rest += 0.01
            await turns()
        rests.append(rest)
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(0.5, abs=0.02)


async def test_a_broker_that_does_not_wait_is_not_asked_in_a_circle(noticing, brokers, clock):
    Client(noticing, clock)
    await turns()
    brokers.answer(False)
    await turns()
    assert brokers.open() == []
    clock.advance(1.0)
    await turns()
    assert len(brokers.open()) == 1


async def test_a_broker_that_fails_is_asked_again_later_and_the_others_go_on(noticing, brokers, clock):
    clients = [Client(noticing, clock, names=("a", "b")) for _ in range(2)]
    await turns()
    brokers.asked[0][2].set_exception(BrokerUnavailable("down"))
    brokers.asked[1][2].set_result(True)
    await turns()
    assert [client.woken for client in clients] == [True, False]
    clients[0].waiter.looked(0)
    clock.advance(1.0)
    await turns()
    assert sorted(broker for broker, _, future in brokers.asked if not future.done()) == ["a", "b"]


async def test_when_a_topic_is_gone_everybody_looks_for_himself(noticing, brokers, clock):
    clients = [Client(noticing, clock) for _ in range(3)]
    await turns()
    brokers.open()[0].set_exception(TopicNotFound("T"))
    await turns()
    assert [client.task.result() for client in clients] == ["", "", ""]
    clock.advance(1.0)
    await turns()
    assert len(noticing) == 0


async def test_a_bug_is_logged_and_ends_one_question_only(noticing, brokers, clock, caplog):
    Client(noticing, clock)
    await turns()
    brokers.open()[0].set_exception(ZeroDivisionError())
    await turns()
    assert "asking a broker for news failed" in caplog.text
    assert len(noticing) == 0
    Client(noticing, clock)
    await turns()
    assert len(brokers.open()) == 1


async def test_a_refusal_is_told_once_and_asked_about_again_later(noticing, brokers, clock):
    """One broker of many may refuse while the others go on: those who wait do not look in a circle."""
    clients = [Client(noticing, clock) for _ in range(2)]
    await turns()
    brokers.open()[0].set_exception(TopicNotFound("T"))
    await turns()
    assert [client.task.result() for client in clients] == ["", ""]
    again = [Client(noticing, clock, is_back=True) for _ in range(2)]
    await turns()
    assert brokers.open() == []
    clock.advance(1.0)
    await turns()
    brokers.open()[0].set_exception(TopicNotFound("T"))
    await turns()
    assert not any(client.task.done() for client in again)
    clock.advance(1.0)
    await turns()
    brokers.answer(True)
    await turns()
    assert [client.woken for client in again] == [False, True]  # who is back last stands first


async def test_a_refusal_is_told_to_each_newcomer(noticing, brokers, clock):
    """A refused client that asks again within the pause does not wait for its polling time to learn it."""
    first = Client(noticing, clock)
    await turns()
    for _ in range(3):
        brokers.open()[0].set_exception(Forbidden("no right"))
        await turns()
        assert first.task.result() == ""
        waiting, first = Client(noticing, clock, is_back=True), Client(noticing, clock)
        clock.advance(1.0)
        await turns()
        assert not waiting.task.done()
    assert not first.task.done()


async def test_a_broker_that_left_is_asked_no_more(noticing, brokers, clock):
    Client(noticing, clock, names=("a", "b"))
    await turns()
    Client(noticing, clock, names=("b",))
    gone = next(future for broker, _, future in brokers.asked if broker == "a")
    gone.set_exception(BrokerUnavailable("left"))
    await turns()
    clock.advance(1.0)
    await turns()
    assert [broker for broker, _, future in brokers.asked if not future.done()] == ["b"]
    assert len(noticing) == 1
