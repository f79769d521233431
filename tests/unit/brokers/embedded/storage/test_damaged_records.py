"""One damaged record: it is kept, told once and counted, and everything else goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.keys import CHECKS, DAMAGED, HALF, MESSAGES, TIMERS, message_key
from popgate.context import Context
from popgate.errors import IllegalTransactionId, NotFound
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Resolution,
    Sent,
    TopicConfig,
    TransactionCheck,
)
from popgate.testing import MovableClock

CONTEXT = Context()
RED = compile_filter(FilterKind.TAG, "red")
Start = Callable[..., Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def start(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with a topic T of one queue, a group G and an ordered group O; or start again."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker() -> EmbeddedBroker:
        for former in brokers:
            await former.stop()
        broker = EmbeddedBroker(tmp_path / "store", clock=clock)
        await broker.start()
        brokers.append(broker)
        if not await broker.topics():
            await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
            await broker.create_group(GroupConfig("G", max_attempts=2))
            await broker.create_group(GroupConfig("O", ordered=True, max_attempts=2))
        return broker

    yield start_broker
    for broker in brokers:
        await broker.stop()


async def send(broker: EmbeddedBroker, *bodies: bytes, **fields: object) -> list[Sent]:
    results = await broker.send(CONTEXT, [Message("T", body, tag="red", **fields) for body in bodies])  # type: ignore[arg-type]
    assert all(isinstance(result, Sent) for result in results)
    return [result for result in results if isinstance(result, Sent)]


async def spoil(broker: EmbeddedBroker, space: str, key: bytes, value: bytes) -> None:
    broker._engine.store.put(space, key, value)
    await broker._engine.store.commit()


async def spoil_message(broker: EmbeddedBroker, offset: int, how: str) -> None:
    key = message_key(broker._engine.catalogue.topic("T").id, 0, offset)
    record = broker._engine.store.get(MESSAGES, key)
    assert record is not None
    damaged = {"cut": record[:-3], "tiny": b"?", "noise": b"\xee" * len(record)}[how]
    await spoil(broker, MESSAGES, key, damaged)


async def take(broker: EmbeddedBroker, group: str = "G", **fields: object) -> list[bytes]:
    request = Pop("T", group, fields.pop("filter", EVERYTHING), 30_000, **fields)  # type: ignore[arg-type]
    return [message.body for message in await broker.pop(CONTEXT, request)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def pass_time(clock: MovableClock, seconds: float) -> None:
    await clock.run(seconds, turns)


def count(broker: EmbeddedBroker) -> float:
    return broker.figures()["damaged_records"]


def kept(broker: EmbeddedBroker) -> list[bytes]:
    return [value for _, value in broker._engine.store.scan(DAMAGED, b"")]


@pytest.mark.parametrize("how", ["cut", "tiny", "noise"])
@pytest.mark.parametrize("group", ["G", "O"])
@pytest.mark.parametrize("passing", [EVERYTHING, RED])
async def test_a_pop_goes_on_behind_a_damaged_message(
    start: Start, caplog: pytest.LogCaptureFixture, how: str, group: str, passing: object
) -> None:
    broker = await start()
    await send(broker, b"1", b"2", b"3")
    await spoil_message(broker, 0, how)
    await spoil_message(broker, 2, how)
    broker = await start()  # the last one is damaged, too
    caplog.set_level(logging.WARNING)
    assert await take(broker, group, filter=passing, max_messages=1) == [b"2"]
    assert await take(broker, group, filter=passing) == []
    assert count(broker) == 2
    assert caplog.text.count("is damaged and is stepped over") == len(caplog.records) == 2
    await send(broker, b"4", message_group="another")
    assert await take(broker, group, filter=passing) == [b"4"]
    topic = broker._engine.catalogue.topic("T")
    assert broker._engine.log.get(topic, 0, 0) is not None


@pytest.mark.parametrize("group", ["G", "O"])
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_message_that_was_damaged_after_its_delivery_does_not_keep_the_others_back(
    start: Start, clock: MovableClock, caplog: pytest.LogCaptureFixture, group: str, attempts: int
) -> None:
    broker = await start()
    await send(broker, b"1", b"2")
    for attempt in range(attempts):
        await pass_time(clock, 31 * attempt)
        assert await take(broker, group) == [b"1", b"2"]
    await spoil_message(broker, 0, "cut")
    await pass_time(clock, 31)
    if attempts == 1:
        assert await take(broker, group) == [b"2"]
    else:
        dead = await broker.bounds(CONTEXT, f"%DLQ%{group}", "", 0)
        assert (dead.minimum, dead.maximum) == (0, 1)
    assert count(broker) == 1
    assert [p.waiting for p in await broker.progress(group, "T")] == [0]
    assert "half-way" not in caplog.text


async def test_readers_step_over_a_damaged_message(start: Start, clock: MovableClock) -> None:
    broker = await start()
    times = []
    for body in (b"1", b"2", b"3", b"4"):
        times.append(clock.now_ms())
        await send(broker, body, keys=("k",))
        clock.advance(1)
    for offset in (1, 2):
        await spoil_message(broker, offset, "tiny")
    for passing in (EVERYTHING, RED):
        pulled = await broker.pull(
            CONTEXT, "T", "", 0, 0, max_messages=9, max_bytes=1 << 20, passing=passing, wait_until=None
        )
        assert [message.body for message in pulled.messages] == [b"1", b"4"]
        assert pulled.next_offset == 4
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=1 << 50, limit=9)
    assert [message.body for message in found] == [b"4", b"1"]
    assert await broker.offset_at(CONTEXT, "T", "", 0, times[0]) == 0
    assert await broker.offset_at(CONTEXT, "T", "", 0, times[3]) in (1, 2, 3)
    assert count(broker) == 2


async def test_retention_removes_a_damaged_message_with_its_neighbours(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    await send(broker, b"1", b"2", b"3")
    for offset in (0, 1):
        await spoil_message(broker, offset, "tiny")
    await pass_time(clock, 72 * 3_600 + 300)
    assert (await broker.bounds(CONTEXT, "T", "", 0)).minimum == 3


@pytest.mark.parametrize("damage", ["record", "place"])
async def test_a_damaged_delayed_message_is_set_aside_and_the_others_come(
    start: Start, clock: MovableClock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    broker = await start()
    sent = await send(broker, b"1", b"2", type=MessageType.DELAY, deliver_at_ms=clock.now_ms() + 5_000)
    ((key, value), _) = broker._engine.store.scan(TIMERS, b"")
    damaged = value[:-1] if damage == "record" else value[:4] + b"\x03\xff" + value[6:]
    await spoil(broker, TIMERS, key, damaged)
    await pass_time(clock, 6)
    assert len(await take(broker)) == 1
    assert (kept(broker), count(broker)) == ([damaged], 1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        record.getMessage() for record in caplog.records if "was set aside" in record.getMessage()
    ]
    assert caplog.text.count("was set aside") == 1
    assert await broker._engine.store.commit() is None
    for handle in (sent[0].recall_handle, sent[1].recall_handle):
        with pytest.raises(NotFound):
            await broker.recall(CONTEXT, "T", handle)
    broker = await start()
    assert count(broker) == 1


async def test_a_damaged_delayed_message_cannot_be_recalled(start: Start, clock: MovableClock) -> None:
    broker = await start()
    [sent] = await send(broker, b"1", type=MessageType.DELAY, deliver_at_ms=clock.now_ms() + 5_000)
    ((key, value),) = broker._engine.store.scan(TIMERS, b"")
    await spoil(broker, TIMERS, key, value[:3])
    with pytest.raises(NotFound):
        await broker.recall(CONTEXT, "T", sent.recall_handle)


@pytest.mark.parametrize("part", [0, 1])
async def test_a_damaged_half_message_is_set_aside_and_the_others_are_asked_about(
    start: Start, clock: MovableClock, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    broker = await start()
    asked: list[bytes] = []

    def ask(check: TransactionCheck) -> bool:
        asked.append(check.message.body)
        return True

    broker.on_check(ask)
    sent = await send(broker, b"1", b"2", type=MessageType.TRANSACTION)
    key, value = list(broker._engine.store.scan(HALF, b""))[part]
    await spoil(broker, HALF, key, value[:20])
    await spoil(broker, CHECKS, bytes(8) + b"odd", b"?")
    end = EndTransaction("T", sent[0].transaction_id, sent[0].message_id, Resolution.COMMIT)
    with pytest.raises(IllegalTransactionId, match="is damaged"):
        await broker.end_transaction(CONTEXT, end)
    broker = await start()
    broker.on_check(ask)
    await pass_time(clock, 7)
    assert asked == [b"2"]
    assert value[:20] in kept(broker)
    assert (len(kept(broker)), count(broker)) == (3, 3)
    assert caplog.text.count("was set aside") == 2
    with pytest.raises(IllegalTransactionId):
        await broker.end_transaction(CONTEXT, end)
    end = EndTransaction("T", sent[1].transaction_id, sent[1].message_id, Resolution.COMMIT)
    await broker.end_transaction(CONTEXT, end)
    assert await take(broker) == [b"2"]
