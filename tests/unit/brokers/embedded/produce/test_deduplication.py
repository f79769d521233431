"""Repeated sends: what the contract cannot see, that is failures, crashes, bounds and what a start reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import MESSAGES, SEEN
from popgate.context import Context
from popgate.errors import BrokerUnavailable
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, MessageType, Sent, TopicConfig
from popgate.testing import MovableClock
from popgate.testing.crash_copy import copy_as_after_a_crash
from popgate.wire.messages.properties import encode_properties

CONTEXT = Context(client_id="me@host@1")
WINDOW_MS = 600_000
Open = Callable[..., Awaitable[EmbeddedBroker]]


class Folder:
    """Brokers one after the other, each on what the one before it left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = MovableClock()
        self.brokers: list[EmbeddedBroker] = []

    async def open(self, **settings: object) -> EmbeddedBroker:
        """A broker that finds what lies there now, as after `kill -9` of the one before."""
        store = self.path / str(len(self.brokers))
        if self.brokers:
            copy_as_after_a_crash(self.path / str(len(self.brokers) - 1), store)
        chosen = replace(EmbeddedSettings(), **settings)  # type: ignore[arg-type]
        broker = EmbeddedBroker(store, clock=self.clock, settings=chosen)
        await broker.start()
        self.brokers.append(broker)
        if not await broker.topics():
            await broker.create_topic(TopicConfig("T", read_queues=2, write_queues=2))
        return broker

    def message(self, number: int, *, delay_ms: int = 0, half: bool = False) -> Message:
        block = {"UNIQ_KEY": f"id-{number}"}
        return Message(
            "T",
            b"%d" % number,
            message_id=f"id-{number}",
            type=MessageType.TRANSACTION if half else MessageType.DELAY if delay_ms else MessageType.NORMAL,
            deliver_at_ms=self.clock.now_ms() + delay_ms if delay_ms else 0,
            properties=encode_properties(block),
        )

    async def send(self, broker: EmbeddedBroker, *numbers: int, **how: object) -> list[Sent]:
        found = await broker.send(CONTEXT, [self.message(n, **how) for n in numbers])  # type: ignore[arg-type]
        assert all(type(sent) is Sent for sent in found)
        return [sent for sent in found if type(sent) is Sent]


def segments(broker: EmbeddedBroker) -> int:
    return sum(1 for _ in broker._engine.store.scan(SEEN, b""))


def count(broker: EmbeddedBroker) -> int:
    return sum(1 for _ in broker._engine.store.scan(MESSAGES, b""))


class FullDisk:
    """A database that reads and closes, but cannot be written."""

    def __init__(self, db: object) -> None:
        self._db = db

    def write(self, *_: object) -> None:
        raise OSError("no space left on device")

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    for broker in folder.brokers:
        await broker.stop()


@pytest.mark.parametrize("sent", [1, 511, 512, 513, 3_000])
async def test_after_a_crash_every_answered_send_is_known(folder: Folder, sent: int) -> None:
    broker = await folder.open()
    first = [(await folder.send(broker, n))[0] for n in range(sent)]
    for _ in range(3):
        broker = await folder.open()
        assert [(await folder.send(broker, n))[0] for n in range(sent)] == first
        assert count(broker) == sent


async def test_after_a_crash_held_messages_are_known_though_their_segment_is_not_full(folder: Folder) -> None:
    broker = await folder.open()
    first = [
        *await folder.send(broker, 0),
        *await folder.send(broker, 1, 2, delay_ms=5_000),
        *await folder.send(broker, 3, half=True),
    ]
    for _ in range(2):
        broker = await folder.open()
        again = [
            *await folder.send(broker, 0),
            *await folder.send(broker, 1, 2, delay_ms=5_000),
            *await folder.send(broker, 3, half=True),
        ]
        assert again == first
    assert all(sent.recall_handle for sent in again[1:3])
    assert again[3].transaction_id


async def test_after_a_crash_a_send_is_known_in_whose_midst_a_millisecond_passed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is closed in that very send, because so much was delivered that was sent long before."""

    async def turns() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    broker = await folder.open()
    await folder.send(broker, *range(1_024), delay_ms=1_000)
    await folder.clock.run(2, turns)
    assert count(broker) == 1_024
    now_ms = folder.clock.now_ms()
    victim = [folder.message(5_000)]
    with monkeypatch.context() as patch:
        looks = iter([now_ms])
        patch.setattr(folder.clock, "now_ms", lambda: next(looks, now_ms + 1))
        first = await broker.send(CONTEXT, victim)
    folder.clock.advance(0.001)
    await folder.send(broker, 5_001)
    broker = await folder.open()
    assert await broker.send(CONTEXT, victim) == first
    assert count(broker) == 1_026


@pytest.mark.parametrize("jump_ms", [-6 * WINDOW_MS, 6 * WINDOW_MS])
async def test_a_clock_that_jumps_makes_no_repeat_a_new_message(folder: Folder, jump_ms: int) -> None:
    broker = await folder.open()
    first = await folder.send(broker, *range(600))
    for _ in range(2):
        folder.clock.set_wall(folder.clock.now_ms() + jump_ms)
        assert await folder.send(broker, *range(600)) == first
        folder.clock.advance(WINDOW_MS / 4_000)
    store = broker._engine.store
    store._db = FullDisk(store._db)  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable):
        await folder.send(broker, 1_000)
    async with asyncio.timeout(60):
        while store.failing:  # a sync that is under way is waited for, and that takes real time
            folder.clock.advance(0.5)
            await asyncio.sleep(0.001)
    assert await folder.send(broker, *range(512)) == first[:512], "read again from the store"
    folder.clock.advance(2 * WINDOW_MS / 1000)
    await folder.send(broker, 1)
    assert count(broker) == 601, "and the window ends when it should"


async def test_the_single_entries_of_held_messages_go_with_their_segment(folder: Folder) -> None:
    broker = await folder.open()
    first = await folder.send(broker, *range(400), delay_ms=5_000)
    assert segments(broker) > 400
    await folder.send(broker, *range(400, 800))
    assert segments(broker) == 2  # the one of the start, and the full one
    broker = await folder.open()
    assert await folder.send(broker, *range(400), delay_ms=5_000) == first


async def test_a_repeat_of_a_send_that_fails_fails_too_and_the_next_is_stored(folder: Folder) -> None:
    broker = await folder.open()
    await folder.send(broker, 0)
    store = broker._engine.store
    healthy = store._db
    store._db = FullDisk(healthy)  # type: ignore[assignment]
    first, second = await asyncio.gather(
        folder.send(broker, 1), folder.send(broker, 1), return_exceptions=True
    )
    assert isinstance(first, BrokerUnavailable)
    assert isinstance(second, BrokerUnavailable)
    with pytest.raises(BrokerUnavailable):
        await folder.send(broker, 1)
    store._db = healthy
    folder.clock.advance(10)
    (again,) = await folder.send(broker, 1)
    assert await folder.send(broker, 1) == [again]
    assert count(broker) == 2


async def test_a_repeat_waits_for_the_first_to_be_written(folder: Folder) -> None:
    broker = await folder.open()
    first = asyncio.ensure_future(folder.send(broker, 1))
    second = asyncio.ensure_future(folder.send(broker, 1))
    second.add_done_callback(lambda _: seen.append(count(broker)))
    seen: list[int] = []
    assert await second == await first
    assert seen == [1]


async def test_a_cancelled_send_is_known_when_it_was_done(folder: Folder) -> None:
    broker = await folder.open()
    task = asyncio.ensure_future(folder.send(broker, 1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await folder.send(broker, 1)
    assert count(broker) == 1


async def test_what_is_known_is_bounded_and_the_latest_half_is_known_at_any_rate(folder: Folder) -> None:
    broker = await folder.open(dedup_max_ids=4_000)
    for at in range(0, 20_000, 100):
        await folder.send(broker, *range(at, at + 100))
        assert len(broker._engine.repeats) <= 4_000 + 2 * 512
    assert segments(broker) <= 4_000 / 512 + 4
    stored = count(broker)
    await folder.send(broker, *range(18_000, 20_000))
    assert count(broker) == stored
    broker = await folder.open(dedup_max_ids=4_000)
    await folder.send(broker, *range(18_100, 20_000))
    assert count(broker) == stored


async def test_the_real_window_is_told_when_it_is_shorter(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """More is sent than may be known: the figures and one line of the log say how far back that reaches."""

    def known_s(broker: EmbeddedBroker) -> float:
        figures = broker.figures()
        assert figures["repeat_window_configured_seconds"] == WINDOW_MS / 1000
        return figures["repeat_window_seconds"]

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if "embedded.dedup_max_ids" in r.getMessage()]

    async def send_for(broker: EmbeddedBroker, first: int, seconds: int) -> None:
        for at in range(first, first + 100 * seconds, 100):
            await folder.send(broker, *range(at, at + 100))
            folder.clock.advance(1)

    broker = await folder.open(dedup_max_ids=4_096)
    await send_for(broker, 0, 20)
    assert (known_s(broker), told()) == (WINDOW_MS / 1000, [])
    await send_for(broker, 10_000, 60)
    assert 20 <= known_s(broker) <= 42
    (line,) = told()
    assert "not for the 600 s of embedded.dedup_window_s" in line
    assert "embedded.dedup_max_ids = 4096" in line
    stored = count(broker)
    oldest = 16_000 - 100 * int(known_s(broker))
    await folder.send(broker, *range(oldest + 100, oldest + 200))
    assert count(broker) == stored

    broker = await folder.open(dedup_max_ids=4_096)
    assert 10 <= known_s(broker) <= 42
    folder.clock.advance(WINDOW_MS / 1000)
    assert known_s(broker) == WINDOW_MS / 1000


async def test_after_a_restart_the_window_of_few_sends_is_whole(folder: Folder) -> None:
    broker = await folder.open(dedup_max_ids=4_096)
    for n in range(40):  # for longer than two windows: the oldest were forgotten by their age
        await folder.send(broker, n)
        folder.clock.advance(60)
    broker = await folder.open(dedup_max_ids=4_096)
    assert broker.figures()["repeat_window_seconds"] == WINDOW_MS / 1000


async def test_what_is_older_than_the_window_is_forgotten_in_memory_and_in_the_store(folder: Folder) -> None:
    broker = await folder.open()
    for n in range(3_000):
        await folder.send(broker, n)
    for n in range(3):
        folder.clock.advance(WINDOW_MS / 1000)
        await folder.send(broker, 10_000 + n)
    assert len(broker._engine.repeats) <= 3
    assert segments(broker) <= 4


async def test_a_start_reads_little_however_much_there_is(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await folder.open(dedup_window_ms=100)
    for at in range(0, 30_000, 100):
        await folder.send(broker, *range(at, at + 100))
        folder.clock.advance(0.001)
    read = count_reads(monkeypatch)
    await folder.open(dedup_window_ms=100)
    assert read() < 3_000


async def test_a_start_reads_little_when_nothing_but_delayed_messages_arrived_for_long(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await folder.open()
    await folder.send(broker, *range(6_000), delay_ms=1_000)
    await folder.send(broker, 6_001)
    for _ in range(3_000):
        folder.clock.advance(0.001)
        for _ in range(3):
            await asyncio.sleep(0)
    assert count(broker) == 6_001
    read = count_reads(monkeypatch)
    broker = await folder.open()
    assert read() < 3_000
    await folder.send(broker, 6_001)
    assert count(broker) == 6_001


async def test_messages_whose_first_place_closes_a_segment_are_in_the_next(folder: Folder) -> None:
    """Others, which may come again, have filled the one before."""
    broker = await folder.open()

    def packed(begin: int, count: int, *, again: bool) -> PackedMessages:
        messages = [folder.message(number) for number in range(begin, begin + count)]
        return PackedMessages(
            "T",
            [message.message_id.encode() for message in messages],
            [message.body for message in messages],
            [message.properties for message in messages],
            [0] * count,
            origins=[(0, "10.0.0.1:1")] * count,
            keys=[()] * count,
            queue_id=0,
            may_come_again=again,
        )

    for begin in (0, 600):
        await broker.send_packed(CONTEXT, packed(begin, 600, again=True))
    number = broker._engine.repeats.number
    for _ in range(2):
        sent = await broker.send_packed(CONTEXT, packed(2_000, 2, again=False))
        assert [each.offset for each in sent if isinstance(each, Sent)] == [1_200, 1_201]
    assert broker._engine.repeats.number == number + 1


async def test_what_compaction_removed_costs_a_start_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a ledger of Spark's sink. It took all that a start reads: of other topics nothing was known."""
    broker = await folder.open()
    attributes = {"cleanup.policy": "COMPACTION"}
    await broker.create_topic(TopicConfig("Ledger", read_queues=1, write_queues=1, attributes=attributes))
    for at in range(0, 19_000, 1_000):  # the last thousand is in no segment yet
        records = [
            Message(
                "Ledger",
                b"open",
                message_id=f"record-{number}",
                properties=encode_properties({"UNIQ_KEY": f"record-{number}", "KEYS": "sink:open"}),
                may_come_again=True,
            )
            for number in range(at, at + 1_000)
        ]
        await broker.send(CONTEXT, records)
        folder.clock.advance(0.001)
    engine = broker._engine
    while engine.catalogue.topic("Ledger").queues[0].kept > 1:
        engine.retention.tick(folder.clock.now_ms())
        await engine.store.commit()
        folder.clock.advance(0.001)
    [first] = await folder.send(broker, 1)
    read = count_reads(monkeypatch)
    broker = await folder.open()
    assert read() < 3_000
    assert await folder.send(broker, 1) == [first]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many messages are read one by one from now on."""
    from brokers.embedded.log.message_log import MessageLog

    real, read = MessageLog.get, 0

    def counted(log: MessageLog, *where: object) -> bytes | None:
        nonlocal read
        read += 1
        return real(log, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(MessageLog, "get", counted)
    return lambda: read


async def test_a_clock_that_is_set_back_loses_nothing(folder: Folder) -> None:
    broker = await folder.open()
    first = await folder.send(broker, 1, 2)
    folder.clock.set_wall(folder.clock.now_ms() - 60_000)
    first += await folder.send(broker, 3, 4)
    assert await folder.send(broker, 1, 2, 3, 4) == first
    broker = await folder.open()
    assert await folder.send(broker, 1, 2, 3, 4) == first


async def test_a_damaged_segment_is_set_aside_and_the_others_count(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await folder.open()
    first = []
    for begin in (0, 512, 1_024):
        first += await folder.send(broker, *range(begin, min(begin + 512, 1_500)))
    broker._engine.repeats.close(folder.clock.now_ms())
    await broker._engine.settled()
    store = broker._engine.store
    found = list(store.scan(SEEN, b""))
    store.put(SEEN, found[1][0], found[1][1][:50])
    await store.commit()
    broker = await folder.open()
    assert broker.figures()["damaged_records"] == 1
    assert "seen" in caplog.text
    again = await folder.send(broker, *range(1_500))
    assert 1_500 < count(broker) <= 1_500 + 512
    assert again[600:] == first[600:]


async def test_a_segment_that_is_damaged_while_it_runs_makes_its_ids_new(folder: Folder) -> None:
    broker = await folder.open()
    await folder.send(broker, *range(512))
    store = broker._engine.store
    found = list(store.scan(SEEN, b""))
    store.put(SEEN, found[1][0], b"")
    await store.commit()
    await folder.send(broker, 1)
    assert count(broker) == 513


async def test_two_ids_with_one_hash_are_two_messages(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brokers.embedded.port import send as sending
    from brokers.embedded.produce import deduplication as repeats

    for module in (repeats, sending):
        monkeypatch.setattr(module, "HASH_MASK", 3)
    broker = await folder.open()
    await folder.send(broker, *range(40))
    assert count(broker) == 40
    await folder.open()
    assert count(broker) == 40


async def test_switched_off_nothing_is_kept_and_switched_on_again_it_begins_anew(folder: Folder) -> None:
    broker = await folder.open()
    await folder.send(broker, 1)
    broker = await folder.open(dedup_window_ms=0)
    await folder.send(broker, 1)
    assert (count(broker), segments(broker), len(broker._engine.repeats)) == (2, 0, 0)
    assert broker.traits.repeats_known_ms == 0
    broker = await folder.open()
    await folder.send(broker, 1)
    await folder.send(broker, 1)
    assert count(broker) == 3


async def test_the_figures_tell_how_many_are_known_and_were_repeated(folder: Folder) -> None:
    broker = await folder.open()
    await folder.send(broker, 1, 2, 1)
    await folder.send(broker, 2)
    figures = broker.figures()
    assert (figures["known_sends"], figures["repeated_sends_total"]) == (2, 2)
    store = broker._engine.store
    store._db = FullDisk(store._db)  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable):
        await folder.send(broker, 3)
    folder.clock.advance(10)
    await folder.send(broker, 1)
    assert broker.figures()["repeated_sends_total"] == 3, "a counter goes on after a write that failed"


async def test_an_id_that_is_too_long_for_a_segment_costs_no_other_one(folder: Folder) -> None:
    """An id of bytes that are no UTF-8 is three times as long as text, and a segment has no room for it."""
    broker = await folder.open()
    known = await folder.send(broker, 1)
    odd = Message("T", b"odd", message_id="�" * 22_000, properties=b"UNIQ_KEY\x01" + b"\xff" * 22_000)
    await broker.send(CONTEXT, [odd])
    folder.clock.advance(WINDOW_MS / 8 / 1000)  # what was sent until now is a segment
    await folder.send(broker, 2)
    assert await folder.send(broker, 1) == known
    broker = await folder.open()
    assert await folder.send(broker, 1) == known
