"""brokers.embedded.engine.engine: it wakes waiting clients, and one failure stops nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import HALF
from popgate.context import Context
from popgate.errors import BrokerUnavailable, GatewayError
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Resolution,
    TopicConfig,
    TransactionCheck,
)
from popgate.testing import MovableClock
from tests.support.waiting import until

CONTEXT = Context()
BROTHERS = compile_filter(FilterKind.TAG, "brother")
SISTERS = compile_filter(FilterKind.TAG, "sister")
Start = Callable[..., Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def start(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with a topic T of some queues and a group G."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker(*, queues: int = 1, **settings: object) -> EmbeddedBroker:
        used = replace(EmbeddedSettings(), **settings)  # type: ignore[arg-type]
        broker = EmbeddedBroker(tmp_path / "store", clock=clock, settings=used)
        await broker.start()
        brokers.append(broker)
        await broker.create_topic(TopicConfig("T", read_queues=queues, write_queues=queues))
        await broker.create_group(GroupConfig("G"))
        return broker

    yield start_broker
    for broker in brokers:
        await broker.stop()


def pop_of(**changes: object) -> Pop:
    return replace(Pop("T", "G", EVERYTHING, 30_000), **changes)  # type: ignore[arg-type]


async def send(broker: EmbeddedBroker, *bodies: bytes, **fields: object) -> None:
    sent = await broker.send(CONTEXT, [Message("T", body, **fields) for body in bodies])  # type: ignore[arg-type]
    assert not any(isinstance(result, GatewayError) for result in sent)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_a_pop_refuses_the_moment_it_falls_due_wakes_who_waits_for_it(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    await send(broker, b"1", tag="sister")
    await broker.pop(CONTEXT, pop_of())
    waiting = asyncio.create_task(
        broker.pop(CONTEXT, pop_of(filter=SISTERS, wait_until=clock.monotonic() + 3_600))
    )
    await turns()
    broker._engine._alarm.off()  # a pop comes before it rings
    clock.advance(31)
    assert await broker.pop(CONTEXT, pop_of(filter=BROTHERS)) == []
    await turns()
    assert waiting.done()
    assert [message.body for message in await waiting] == [b"1"]


async def test_timers_that_fail_keep_no_check_and_no_removal_back(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(retention_ms=1_000)
    asked: list[object] = []
    broker.on_check(lambda check: not asked.append(check))  # type: ignore[func-returns-value]
    await send(broker, b"old")
    await send(broker, b"half", type=MessageType.TRANSACTION)
    await send(broker, b"late", deliver_at_ms=clock.now_ms() + 1_000)
    tries = 0

    def fail(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise BrokerUnavailable("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr("brokers.embedded.produce.delayed_messages.DelayedMessages.tick", fail)
        await clock.run(300, turns)
    assert asked
    assert (await broker.bounds(CONTEXT, "T", "", 0)).minimum == 1
    assert 3 <= tries <= 15
    await clock.run(70, turns)
    assert (await broker.bounds(CONTEXT, "T", "", 0)).maximum == 2


async def test_a_reset_that_cannot_read_one_queue_changes_none(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(queues=2)
    for queue_id in (0, 1):
        await send(broker, b"1", queue_id=queue_id)
    held = await broker.pop(CONTEXT, pop_of())
    offset_at = broker._engine.log.offset_at

    def fail_at_the_second(queue: Any, time_ms: int) -> int:
        if queue.queue_id == 1:
            raise BrokerUnavailable("unreadable")
        return offset_at(queue, time_ms)

    with monkeypatch.context() as patch:
        patch.setattr(broker._engine.log, "offset_at", fail_at_the_second)
        with pytest.raises(BrokerUnavailable):
            await broker.reset("G", "T", clock.now_ms())
    receipts = [message.receipt for message in held]
    assert await broker.ack(CONTEXT, "T", "G", receipts) == [None, None]
    assert [progress.committed for progress in await broker.progress("G", "T")] == [1, 1]


async def test_dead_letters_of_a_lowered_number_of_attempts_are_made_a_few_at_a_time(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_scan=16)
    await send(broker, *[b"%d" % at for at in range(256)])
    assert len(await broker.pop(CONTEXT, pop_of(max_messages=256))) == 256
    await clock.run(31, turns)
    await broker.update_group(GroupConfig("G", max_attempts=1))
    most = 0
    add = broker._engine.parts.dead_letters.add
    made = 0

    def counted(*arguments: Any, **options: Any) -> None:
        nonlocal made
        made += 1
        add(*arguments, **options)

    broker._engine.parts.dead_letters.add = counted  # type: ignore[method-assign]
    popping = asyncio.create_task(broker.pop(CONTEXT, pop_of()))
    while not popping.done():
        before = made
        await asyncio.sleep(0)
        most = max(most, made - before)
    assert await popping == []
    await turns()
    assert (await broker.bounds(CONTEXT, "%DLQ%G", "", 0)).maximum == 256
    assert most <= 64


async def test_a_look_up_sorts_the_index_in_memory_once_for_many_hours(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    for hour in range(24):
        await send(broker, b"%d" % hour, keys=(f"k{hour}",))
        clock.advance(3_600)
    cursors = 0
    seeker = broker._engine.store.seeker

    def counted(space: str) -> object:
        nonlocal cursors
        cursors += 1
        return seeker(space)

    monkeypatch.setattr(broker._engine.store, "seeker", counted)
    assert await broker.find_by_id(CONTEXT, "T", "nowhere") == []
    assert cursors <= 4
    found = await broker.find_by_key(CONTEXT, "T", "k3", begin_ms=0, end_ms=clock.now_ms(), limit=9)
    assert [message.body for message in found] == [b"3"]
    assert cursors <= 10


async def test_a_pop_whose_looks_end_with_one_queue_goes_on_with_the_next(
    start: Start, clock: MovableClock
) -> None:
    """Else it would wait beside the message until its time is over, though nothing holds that back."""
    broker = await start(queues=2, max_scan=10)
    for queue_id in (0, 1):
        await send(broker, *[b"x"] * 10, tag="sister", queue_id=queue_id)
    await send(broker, b"wanted", tag="brother", queue_id=1)
    until = clock.monotonic() + 20
    waiting = asyncio.ensure_future(broker.pop(CONTEXT, pop_of(filter=BROTHERS, wait_until=until)))
    await turns(20)
    assert waiting.done()
    assert [message.body for message in await waiting] == [b"wanted"]


async def test_an_answer_to_a_check_from_before_memory_was_read_again_stores_nothing(
    start: Start, clock: MovableClock
) -> None:
    """Its transaction ends in the same moment, by what was read again: nothing of it may be left."""
    broker = await start()
    asked: list[TransactionCheck] = []
    answer = asyncio.get_running_loop().create_future()

    def ask(check: TransactionCheck) -> asyncio.Future[bool]:
        asked.append(check)
        return answer

    broker.on_check(ask)
    await send(broker, b"half", message_id="id", type=MessageType.TRANSACTION)
    await clock.run(10, turns)
    (check,) = asked
    engine = broker._engine
    engine.abandon(RuntimeError("a step went wrong"))
    end = EndTransaction("T", check.transaction_id, "id", Resolution.COMMIT)
    ending = asyncio.ensure_future(broker.end_transaction(CONTEXT, end))
    if not answer.done():
        answer.set_result(True)
    await ending
    assert list(engine.store.scan(HALF, b"")) == []


@pytest.mark.parametrize("ordered", [False, True])
async def test_who_gives_up_after_memory_was_read_again_gives_back_what_it_took(
    start: Start, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    broker = await start()
    await send(broker, b"1")
    engine = broker._engine
    settled = engine.settled

    async def given_up() -> None:
        await settled()
        engine.abandon(RuntimeError("a step of another client went wrong"))
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(engine, "settled", given_up)
        with pytest.raises(asyncio.CancelledError):
            await broker.pop(Context(client_id="c"), pop_of(ordered=ordered, attempt_id="a"))
    (message,) = await broker.pop(CONTEXT, pop_of(ordered=ordered))
    assert (message.body, message.attempt) == (b"1", 1)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_repeat_after_memory_was_read_again_takes_nothing_from_the_first(
    start: Start, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """How many receives of an attempt have a message is not in the store."""
    broker = await start()
    await send(broker, b"1")
    engine = broker._engine
    (first,) = await broker.pop(CONTEXT, pop_of(ordered=True, attempt_id="a"))
    settled, waits = engine.settled, 0

    async def read_again() -> None:
        nonlocal waits
        await settled()
        waits += 1
        if waits == 1:
            engine.abandon(RuntimeError("a step of another client went wrong"))
            if cancelled:
                raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(engine, "settled", read_again)
        if cancelled:
            with pytest.raises(asyncio.CancelledError):
                await broker.pop(CONTEXT, pop_of(ordered=True, attempt_id="a"))
            assert await broker.pop(CONTEXT, pop_of(ordered=True)) == []
        else:
            (again,) = await broker.pop(CONTEXT, pop_of(ordered=True, attempt_id="a"))
            assert again.receipt == first.receipt
    assert await broker.ack(CONTEXT, "T", "G", [first.receipt]) == [None]


async def test_who_gives_up_leaves_what_another_took_after_memory_was_read_again(start: Start) -> None:
    """Both in the same millisecond: of what the first one took nothing was written."""
    broker = await start()
    await send(broker, b"1")
    engine = broker._engine
    first = asyncio.ensure_future(broker.pop(CONTEXT, pop_of()))
    await until(lambda: engine.store.filling, pause_s=0)
    second = asyncio.ensure_future(broker.pop(Context(client_id="b"), pop_of()))
    engine.abandon(RuntimeError("a step of another client went wrong"))
    first.cancel()
    (message,) = await second
    assert first.cancelled()
    assert await broker.pop(CONTEXT, pop_of()) == []
    assert await broker.ack(CONTEXT, "T", "G", [message.receipt]) == [None]
