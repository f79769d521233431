"""The hard cases of the broker: no wake goes lost, no handle means too much, no step is large."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, ReceiptExpired
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, StartFrom, StoredMessage, TopicConfig
from popgate.testing import MovableClock

CONTEXT = Context()
BROTHERS = compile_filter(FilterKind.TAG, "brother")
SISTERS = compile_filter(FilterKind.TAG, "sister")

Start = Callable[..., Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def start(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with a topic T of one queue and a group G, or again on the same folder."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker(group: GroupConfig | None = None, **settings: object) -> EmbeddedBroker:
        for former in brokers:
            await former.stop()
        broker = EmbeddedBroker(
            tmp_path / "store",
            clock=clock,
            settings=replace(EmbeddedSettings(), **settings),  # type: ignore[arg-type]
        )
        await broker.start()
        brokers.append(broker)
        if not await broker.topics():
            await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
            await broker.create_group(group or GroupConfig("G"))
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


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


# -- wakes ------------------------------------------------------------------------------------


async def test_dead_letters_that_make_room_wake_who_waits_for_new_messages(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(GroupConfig("G", max_attempts=1), max_in_flight=2)
    await send(broker, b"1", b"2", b"3")
    assert len(await broker.pop(CONTEXT, pop_of())) == 2
    waiting = asyncio.create_task(broker.pop(CONTEXT, pop_of(wait_until=clock.monotonic() + 3_600)))
    await turns()
    assert not waiting.done()
    await clock.run(31, turns)
    assert waiting.done()
    assert bodies(await waiting) == [b"3"]


async def test_a_message_that_is_dead_lettered_makes_room_for_who_waits(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_in_flight=1)
    await send(broker, b"1", b"2")
    (held,) = await broker.pop(CONTEXT, pop_of())
    waiting = asyncio.create_task(broker.pop(CONTEXT, pop_of(wait_until=clock.monotonic() + 3_600)))
    await turns()
    await broker.dead_letter(CONTEXT, "T", "G", held.receipt)
    await turns()
    assert waiting.done()
    assert bodies(await waiting) == [b"2"]


async def test_room_in_the_window_of_an_ordered_group_wakes_who_waits_for_another_message_group(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(GroupConfig("G", ordered=True, max_attempts=1), max_order_window=2)
    await send(broker, b"1", b"2", message_group="a")
    await send(broker, b"3", message_group="b")
    assert bodies(await broker.pop(CONTEXT, pop_of(max_messages=2, ordered=True))) == [b"1", b"2"]
    waiting = asyncio.create_task(
        broker.pop(CONTEXT, pop_of(ordered=True, wait_until=clock.monotonic() + 3_600))
    )
    await turns()
    await clock.run(31, turns)
    assert waiting.done()
    assert bodies(await waiting) == [b"3"]


async def test_a_pop_whose_time_is_over_while_it_looks_passes_its_wake_on(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_scan=4)
    await broker.pop(CONTEXT, pop_of())
    first = asyncio.create_task(
        broker.pop(CONTEXT, pop_of(filter=SISTERS, max_messages=32, wait_until=clock.monotonic() + 10))
    )
    await turns()
    second = asyncio.create_task(broker.pop(CONTEXT, pop_of(wait_until=clock.monotonic() + 3_600)))
    await turns()
    sending = asyncio.create_task(send(broker, *[b"%d" % at for at in range(9)], tag="brother"))
    while not sending.done():
        await asyncio.sleep(0)
        # The first pop has been woken; it looks at four messages, and its time is over.
        if broker._engine.waiting._wakes:
            clock._monotonic_ns += 11_000_000_000
    await turns()
    assert await first == []
    assert second.done()
    assert await second


# -- handles ----------------------------------------------------------------------------------


async def test_a_receive_gets_back_only_what_it_holds_itself(start: Start, clock: MovableClock) -> None:
    broker = await start(GroupConfig("G", ordered=True))
    await send(broker, b"1", tag="brother", message_group="a")
    ordered = pop_of(ordered=True)
    assert await broker.pop(CONTEXT, replace(ordered, attempt_id="first"))
    await clock.run(31, turns)
    # It rests, because it does not pass this filter, and then somebody else gets it.
    assert await broker.pop(CONTEXT, replace(ordered, attempt_id="second", filter=SISTERS)) == []
    await clock.run(6, turns)
    (held,) = await broker.pop(CONTEXT, replace(ordered, attempt_id="third"))
    assert await broker.pop(CONTEXT, replace(ordered, attempt_id="first")) == []
    assert await broker.ack(CONTEXT, "T", "G", [held.receipt]) == [None]
    assert not any(share.attempts for share in broker._engine.shares)


async def test_handles_of_before_a_reset_finish_nothing_within_the_same_millisecond(start: Start) -> None:
    broker = await start()
    await send(broker, b"1")
    handles: set[str] = set()
    for _ in range(4):
        (message,) = await broker.pop(CONTEXT, pop_of())
        for handle in handles:
            (result,) = await broker.ack(CONTEXT, "T", "G", [handle])
            assert isinstance(result, ReceiptExpired)
        handles.add(message.receipt)
        await broker.change_invisible(CONTEXT, "T", "G", message.receipt, 0)
        (message,) = await broker.pop(CONTEXT, pop_of())
        handles.add(message.receipt)
        await broker.reset("G", "T", StartFrom.FIRST)
    assert len(handles) == 8


# -- failures ---------------------------------------------------------------------------------


async def test_a_dead_letter_that_cannot_be_stored_leaves_the_message_to_come_back(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(GroupConfig("G", max_attempts=1))
    await send(broker, b"1")
    (held,) = await broker.pop(CONTEXT, pop_of())

    def fail(*_: object, **__: object) -> None:
        raise BrokerUnavailable("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(broker._engine.parts.dead_letters, "add", fail)
        with pytest.raises(BrokerUnavailable):
            await broker.change_invisible(CONTEXT, "T", "G", held.receipt, 0)
    await clock.run(120, turns)
    assert (await broker.bounds(CONTEXT, "%DLQ%G", "", 0)).maximum == 1


async def test_what_cannot_happen_at_its_time_is_not_tried_again_at_once(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await send(broker, b"1", deliver_at_ms=clock.now_ms() + 1_000)
    tries = 0

    def fail(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise BrokerUnavailable("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr("brokers.embedded.produce.delayed_messages.DelayedMessages.tick", fail)
        for _ in range(100):
            await clock.run(0.1, turns)
            await send(broker, b"2")
            for message in await broker.pop(CONTEXT, pop_of()):
                assert await broker.ack(CONTEXT, "T", "G", [message.receipt]) == [None]
    assert 0 < tries <= 12
    await clock.run(120, turns)
    assert bodies(await broker.pop(CONTEXT, pop_of())) == [b"1"]


async def test_a_dead_letter_that_cannot_be_stored_keeps_no_other_group_from_its_messages(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(GroupConfig("G", max_attempts=1))
    await broker.create_group(GroupConfig("H"))
    await send(broker, b"1")
    assert await broker.pop(CONTEXT, pop_of())

    def fail(*_: object, **__: object) -> None:
        raise BrokerUnavailable("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr("brokers.embedded.groups.dead_letters.DeadLetters.add", fail)
        await clock.run(31, turns)
        (message,) = await broker.pop(CONTEXT, pop_of(group="H"))
        assert await broker.ack(CONTEXT, "T", "H", [message.receipt]) == [None]
    await clock.run(120, turns)
    assert (await broker.bounds(CONTEXT, "%DLQ%G", "", 0)).maximum == 1


# -- size of a step ---------------------------------------------------------------------------


class Meter:
    """Counts the bytes that the store reads, and tells the most between two turns of the loop."""

    def __init__(self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        log = broker._engine.log
        read, get_many, get = log.read, log.get_many, log.get

        def metered_read(*args: object) -> object:
            for offset, record in read(*args):  # type: ignore[arg-type]
                self.count(record)
                yield offset, record

        def metered_many(*args: object) -> object:
            records = get_many(*args)  # type: ignore[arg-type]
            for record in records:
                self.count(record)
            return records

        def metered_get(*args: object) -> object:
            record = get(*args)  # type: ignore[arg-type]
            self.count(record)
            return record

        monkeypatch.setattr(log, "read", metered_read)
        monkeypatch.setattr(log, "get_many", metered_many)
        monkeypatch.setattr(log, "get", metered_get)

    def count(self, record: bytes | None) -> None:
        if not self.now:
            asyncio.get_running_loop().call_soon(self.end)
        self.now += len(record or b"")

    def end(self) -> None:
        self.most, self.now = max(self.most, self.now), 0


BODY = bytes(64 * 1024)
LARGEST_STEP = 16 * 1024 * 1024


async def test_a_filter_does_not_read_a_gigabyte_of_large_messages_in_one_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(max_due_bytes=1 << 20)
    for _ in range(20):
        await send(broker, *[BODY] * 32, tag="brother")
    await send(broker, b"sister", tag="sister")
    meter = Meter(broker, monkeypatch)
    assert bodies(await broker.pop(CONTEXT, pop_of(filter=SISTERS))) == [b"sister"]
    await turns()
    assert 0 < meter.most < LARGEST_STEP


async def test_a_pull_with_a_filter_does_not_either(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    for _ in range(20):
        await send(broker, *[BODY] * 32, tag="brother")
    await send(broker, b"sister", tag="sister")
    meter = Meter(broker, monkeypatch)
    pulled = await broker.pull(
        *(CONTEXT, "T", "", 0, 0),
        max_messages=32,
        max_bytes=1 << 20,
        passing=SISTERS,
        wait_until=clock.monotonic() + 10,
    )
    await turns()
    assert bodies(pulled.messages) == [b"sister"]
    assert pulled.next_offset == 641
    assert 0 < meter.most < LARGEST_STEP


async def test_an_ordered_group_does_not_either(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await start(GroupConfig("G", ordered=True))
    for at in range(20):
        await send(broker, *[BODY] * 32, tag="brother", message_group=f"group {at}")
    await send(broker, b"sister", tag="sister")
    meter = Meter(broker, monkeypatch)
    assert bodies(await broker.pop(CONTEXT, pop_of(filter=SISTERS, ordered=True))) == [b"sister"]
    await turns()
    assert 0 < meter.most < LARGEST_STEP


async def test_large_messages_become_dead_letters_a_few_at_a_time(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(GroupConfig("G", max_attempts=1))
    for _ in range(20):
        await send(broker, *[BODY] * 32)
    assert len(await broker.pop(CONTEXT, pop_of(max_messages=640))) == 640
    await turns()
    meter = Meter(broker, monkeypatch)
    await clock.run(31, turns)
    assert 0 < meter.most < LARGEST_STEP
    assert (await broker.bounds(CONTEXT, "%DLQ%G", "", 0)).maximum == 640


async def test_an_ordered_group_of_large_messages_is_found_again_a_few_at_a_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = pop_of(ordered=True, max_messages=1)
    broker = await start(GroupConfig("G", ordered=True))
    for _ in range(10):
        await send(broker, *[BODY] * 32, message_group="a")
    await send(broker, b"last", message_group="b")
    assert len(await broker.pop(CONTEXT, ordered)) == 1
    assert bodies(await broker.pop(CONTEXT, ordered)) == [b"last"]
    broker = await start()
    sizes: list[int] = []
    get_many = broker._engine.log.get_many

    def metered(*args: object) -> object:
        records = get_many(*args)  # type: ignore[arg-type]
        sizes.append(sum(len(record or b"") for record in records))
        return records

    monkeypatch.setattr(broker._engine.log, "get_many", metered)
    assert await broker.pop(CONTEXT, ordered) == []
    assert max(sizes, default=0) < LARGEST_STEP


async def test_a_key_that_many_messages_have_is_looked_up_at_its_time_without_reading_the_later_ones(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await send(broker, b"first", keys=("k",))
    begin_ms = clock.now_ms()
    clock.advance(1)
    for _ in range(20):
        await send(broker, *[b"later"] * 100, keys=("k",))
    meter = Meter(broker, monkeypatch)
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=begin_ms, end_ms=begin_ms, limit=10)
    assert bodies(found) == [b"first"]
    await turns()
    assert meter.most < 20_000
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=begin_ms, end_ms=clock.now_ms(), limit=3)
    assert bodies(found) == [b"later"] * 3
    assert found[0].offset == 2_000
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=clock.now_ms(), limit=9_999)
    assert len(found) == 2_001


# -- growth and names -------------------------------------------------------------------------


async def test_asking_for_progress_leaves_nothing_behind(start: Start) -> None:
    broker = await start()
    await send(broker, b"1")
    (progress,) = await broker.progress("G", "T")
    assert (progress.frontier, progress.lag) == (0, 1)
    assert not list(broker._engine.shares)


async def test_names_that_are_no_text_are_refused_and_leave_nothing(start: Start) -> None:
    broker = await start()
    with pytest.raises(BadRequest):
        await broker.create_group(GroupConfig("\ud800"))
    with pytest.raises(BadRequest):
        await broker.create_topic(TopicConfig("\ud800"))
    assert [group.name for group in await broker.groups()] == ["G"]
    assert [topic.name for topic in await broker.topics()] == ["T"]
