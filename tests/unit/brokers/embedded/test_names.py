"""No two deliveries of a message have the same name, whatever the wall clock does meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.errors import ReceiptExpired
from popgate.filters.compiled import EVERYTHING
from popgate.ids.receipt import parse_receipt
from popgate.model import GroupConfig, Message, Pop, StartFrom, StoredMessage, TopicConfig
from popgate.testing import MovableClock

CONTEXT = Context()
HOUR_MS = 3_600_000
HOLD_MS = 30_000
Start = Callable[[], Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture(params=[False, True], ids=["unordered", "ordered"])
async def start(request: pytest.FixtureRequest, tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with one message in topic T and a group G, or again on the same folder."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker() -> EmbeddedBroker:
        for former in brokers:
            await former.stop()
        broker = EmbeddedBroker(tmp_path / "store", clock=clock)
        await broker.start()
        brokers.append(broker)
        if not await broker.topics():
            await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
            await broker.create_group(GroupConfig("G", ordered=request.param))
            await broker.send(CONTEXT, [Message("T", b"m")])
        return broker

    yield start_broker
    for broker in brokers:
        await broker.stop()


async def take(broker: EmbeddedBroker) -> StoredMessage:
    (message,) = await broker.pop(CONTEXT, Pop("T", "G", EVERYTHING, HOLD_MS))
    return message


def name_of(message: StoredMessage) -> int:
    return parse_receipt(message.receipt).pop_ms


async def check_named_anew(broker: EmbeddedBroker, old: StoredMessage) -> None:
    """Deliver the message at the time of its old delivery: the old handle is nothing worth."""
    new = await take(broker)
    assert name_of(new) > name_of(old)
    (result,) = await broker.ack(CONTEXT, "T", "G", [old.receipt])
    assert isinstance(result, ReceiptExpired)
    assert await broker.ack(CONTEXT, "T", "G", [new.receipt]) == [None]


async def test_a_reset_and_then_a_restart_with_the_clock_set_back(start: Start, clock: MovableClock) -> None:
    broker = await start()
    old = await take(broker)
    await broker.reset("G", "T", StartFrom.FIRST)
    clock.set_wall(name_of(old))
    await check_named_anew(await start(), old)


@pytest.mark.parametrize("finished", [False, True])
async def test_a_restart_with_the_clock_set_back_and_then_a_reset(
    start: Start, clock: MovableClock, finished: bool
) -> None:
    broker = await start()
    old = await take(broker)
    if finished:
        await broker.ack(CONTEXT, "T", "G", [old.receipt])
    clock.set_wall(clock.now_ms() - HOUR_MS)
    broker = await start()
    await broker.reset("G", "T", StartFrom.FIRST)
    clock.advance((name_of(old) - clock.now_ms()) / 1000)
    await check_named_anew(broker, old)


async def test_the_name_of_a_redelivery_is_kept_too(start: Start, clock: MovableClock) -> None:
    broker = await start()
    await take(broker)
    clock.advance(HOLD_MS / 1000)
    old = await take(broker)
    await broker.ack(CONTEXT, "T", "G", [old.receipt])
    clock.set_wall(clock.now_ms() - HOUR_MS)
    broker = await start()
    await broker.reset("G", "T", StartFrom.FIRST)
    clock.set_wall(name_of(old))
    await check_named_anew(await start(), old)


async def test_a_name_that_is_ahead_of_the_clock_costs_nobody_the_time_of_a_hold(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    await take(broker)
    clock.set_wall(clock.now_ms() - HOUR_MS)
    broker = await start()
    await broker.reset("G", "T", StartFrom.FIRST)
    held = await take(broker)
    broker = await start()
    clock.advance(HOLD_MS / 1000 - 1)
    assert await broker.pop(CONTEXT, Pop("T", "G", EVERYTHING, HOLD_MS)) == []
    assert await broker.ack(CONTEXT, "T", "G", [held.receipt]) == [None]
