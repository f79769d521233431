"""Look-ups: how much one answer may hold. What they find is in the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.catalog.catalog import QueueState, Topic
from brokers.embedded.log.index_blocks import BLOCK, encode_block
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.port import lookup
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import HOUR_MS, INDEX, index_key, split_index_key, text_hash
from brokers.embedded.storage.store import Store
from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.messages.packed_messages import PackedMessages
from popgate.model import CLEANUP_POLICY, COMPACTION, Message, Sent, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties
from tests.support.turns import Turns

CONTEXT = Context()
HOUR_S = 3_600
Start = Callable[..., Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def start(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with a topic T of three queues."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker(**settings: object) -> EmbeddedBroker:
        chosen = replace(EmbeddedSettings(), **settings)  # type: ignore[arg-type]
        broker = EmbeddedBroker(tmp_path / "store", clock=clock, settings=chosen)
        await broker.start()
        brokers.append(broker)
        await broker.create_topic(TopicConfig("T", read_queues=3, write_queues=3))
        return broker

    yield start_broker
    for broker in brokers:
        await broker.stop()


async def send(broker: EmbeddedBroker, queue_id: int, body: bytes) -> None:
    message = Message("T", body, keys=("k",), queue_id=queue_id)
    assert isinstance((await broker.send(CONTEXT, [message]))[0], Sent)


async def send_batch(
    broker: EmbeddedBroker,
    queue_id: int,
    count: int = 16,
    *,
    name: int = 0,
    others: tuple[bytes, ...] = (b"k",),
) -> None:
    """Messages with the key k, of which the index has one block; `others`: keys of all but the first."""
    ids = [f"{queue_id}-{name}-{at}" for at in range(count)]
    await broker.send_packed(
        CONTEXT,
        PackedMessages(
            "T",
            [name.encode() for name in ids],
            [b"body"] * count,
            [encode_properties({"UNIQ_KEY": name, "KEYS": "k"}) for name in ids],
            [0] * count,
            origins=[(5, "10.0.0.1:1")] * count,
            keys=[(b"k",), *[others] * (count - 1)],
            queue_id=queue_id,
        ),
    )


async def find(broker: EmbeddedBroker, limit: int = 1024) -> list[bytes]:
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=1 << 50, limit=limit)
    return [message.body[:1] for message in found]


async def test_an_answer_is_bounded_in_bytes_and_keeps_the_newest_of_all_queues(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_found_bytes=35_000)
    for at, letter in enumerate(b"abcdef"):
        await send(broker, at % 3, bytes([letter]) * 10_000)
        clock.advance(1)
    assert await find(broker) == [b"f", b"e", b"d"]
    assert await find(broker, limit=2) == [b"f", b"e"]
    assert await find(broker, limit=0) == []


async def test_no_older_message_is_found_in_the_place_of_one_that_was_too_large(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_found_bytes=15_000)
    for queue_id, body in ((0, b"a"), (1, b"b" * 12_000), (2, b"c" * 10_000)):
        await send(broker, queue_id, body)
        clock.advance(HOUR_S if body == b"a" else 1)
    assert await find(broker) == [b"c"]


async def test_the_newest_message_is_found_however_large_it_is(start: Start, clock: MovableClock) -> None:
    broker = await start(max_found_bytes=100)
    await send(broker, 0, b"a")
    clock.advance(HOUR_S)
    await send(broker, 0, b"b" * 10_000)
    assert await find(broker) == [b"b"]


async def test_no_more_is_read_than_can_be_kept(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(max_found_bytes=35_000)
    for at in range(60):
        await send(broker, at % 3, b"x" * 10_000)
        clock.advance(1)
    read: list[int] = []
    get = MessageLog.get

    def counted(log: MessageLog, topic: Topic, queue_id: int, offset: int) -> bytes | None:
        record = get(log, topic, queue_id, offset)
        read.append(len(record or b""))
        return record

    monkeypatch.setattr(MessageLog, "get", counted)
    monkeypatch.setattr(MessageLog, "offset_at", lambda log, queue, ms: queue.visible if ms else 0)
    assert await find(broker) == [b"x"] * 3
    assert len(read) <= 9
    read.clear()
    assert await find(broker, limit=1) == [b"x"]
    assert len(read) == 3


async def test_others_get_a_turn_while_batches_of_many_queues_are_found(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find how far to look in a queue takes some 20 records that are read, twice."""
    broker = await start()
    await broker.update_topic(TopicConfig("T", read_queues=100, write_queues=100))
    for queue_id in range(100):
        await send_batch(broker, queue_id)
    offset_at = MessageLog.offset_at
    turns = Turns()

    def counted(log: MessageLog, queue: QueueState, time_ms: int) -> int:
        turns.count()
        return offset_at(log, queue, time_ms)

    monkeypatch.setattr(MessageLog, "offset_at", counted)
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=1 << 50, limit=1)
    in_turn = turns.stop()
    assert [(message.queue_id, message.offset) for message in found] == [(0, 15)]
    assert sum(in_turn) == 200
    assert max(in_turn) <= 16


async def test_others_get_a_turn_while_one_message_of_each_batch_is_found(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read with all of its batch."""
    broker = await start()
    for name in range(300):
        await send_batch(broker, 0, name=name, others=())
    get = MessageLog.get
    monkeypatch.setattr(MessageLog, "offset_at", lambda log, queue, ms: queue.visible if ms else 0)
    turns = Turns()

    def counted(log: MessageLog, topic: Topic, queue_id: int, offset: int) -> bytes | None:
        turns.count()
        return get(log, topic, queue_id, offset)

    monkeypatch.setattr(MessageLog, "get", counted)
    found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=1 << 50, limit=300)
    in_turn = turns.stop()
    assert {message.offset for message in found} == {*range(0, 300 * 16, 16)}
    assert sum(in_turn) == 300
    assert max(in_turn) <= 128


async def test_batches_after_the_time_that_is_asked_for_are_passed_over(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(dedup_window_ms=0)
    first_ms = clock.now_ms()
    for _ in range(100):
        await send_batch(broker, 1)
        clock.advance(1)
    await send_batch(broker, 0)
    scans: list[bytes] = []
    scan_back = Store.scan_back

    def counted(store: Store, space: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        scans.append(end)
        return scan_back(store, space, begin, end)

    monkeypatch.setattr(Store, "scan_back", counted)
    found = await broker.find_by_key(
        CONTEXT, "T", "k", begin_ms=first_ms, end_ms=first_ms + 1_000, limit=1_024
    )
    assert [message.offset for message in found] == [*range(31, -1, -1)]
    assert len(scans) <= 3


async def test_of_a_compacted_topic_no_blocks_are_looked_for(
    start: Start, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before them RocksDB goes through all entries of the hour that were deleted: 12 ms for 50,000."""
    broker = await start()
    await broker.create_topic(TopicConfig("C", attributes={CLEANUP_POLICY: COMPACTION}))
    for name in ("T", "C"):
        assert isinstance((await broker.send(CONTEXT, [Message(name, b"body", keys=("k",))]))[0], Sent)
    sought: list[bytes] = []
    seeker = Store.seeker

    def noting(store: Store, space: str) -> lookup.Seek:
        seek = seeker(store, space)

        def noted(key: bytes) -> tuple[bytes, bytes] | None:
            sought.append(key)
            return seek(key)

        return noted

    monkeypatch.setattr(Store, "seeker", noting)
    hashes: dict[str, set[int]] = {}
    for name in ("T", "C"):
        sought.clear()
        assert len(await broker.find_by_key(CONTEXT, name, "k", begin_ms=0, end_ms=1 << 50, limit=9)) == 1
        hashes[name] = {split_index_key(key)[2] for key in sought if len(key) == 26}
    wanted = text_hash(b"k", b"k")
    assert hashes == {"T": {wanted, BLOCK}, "C": {wanted}}


async def test_a_message_that_the_index_has_twice_is_found_once(start: Start, clock: MovableClock) -> None:
    """Entries may outlive messages that were lost with a log, and others have their offsets since."""
    broker = await start()
    await send_batch(broker, 0, count=20)
    store, topic = broker._engine.store, broker._engine.catalogue.topic("T")
    hour = clock.now_ms() // HOUR_MS
    stale = encode_block([b""] * 16, [(b"k",)] * 16)
    store.put(INDEX, index_key(hour, topic.id, BLOCK, 0, 8), stale)
    store.put(INDEX, index_key(hour, topic.id, text_hash(b"k", b"k"), 0, 3), b"")
    store.put(INDEX, index_key(hour - 1, topic.id, text_hash(b"k", b"k"), 0, 4), b"")
    await store.commit()
    for limit in (5, 1024):
        found = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=0, end_ms=1 << 50, limit=limit)
        assert [message.offset for message in found] == [*range(19, -1, -1)][:limit]


class SlowToBegin:
    """Stands for a store whose cursors take a time before their first block."""

    def __init__(self, blocks: int, begin_s: float, block_s: float) -> None:
        block = encode_block([b"id"] * 16, [()] * 16)
        self._pairs = [(index_key(1, 1, BLOCK, 0, 16 * at), block) for at in range(blocks)]
        self._begin_s, self._block_s = begin_s, block_s
        self.now_s = 0.0
        self.turns_s: list[float] = []

    def scan_back(self, space: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.now_s += self._begin_s
        for pair in reversed(self._pairs):
            if begin <= pair[0] < end:
                yield pair
                self.now_s += self._block_s

    def look_through(self, wanted: int) -> None:
        begin, end = index_key(1, 1, BLOCK, 0, 0), index_key(1, 1, BLOCK, 1, 0)
        while begin < end:
            began_s = self.now_s
            _, end = lookup._hits(cast(Store, self), begin, end, wanted)
            self.turns_s.append(self.now_s - began_s)


@pytest.mark.parametrize(("begin_s", "total_s", "turn_s"), [(0.0, 0.02, 0.0011), (0.01, 0.045, 0.021)])
def test_a_cursor_that_takes_long_to_make_is_used_for_as_long_again(
    begin_s: float, total_s: float, turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowToBegin(20_000, begin_s, 1e-6)
    monkeypatch.setattr(lookup, "perf_counter", lambda: store.now_s)
    store.look_through(text_hash(b"k", b"none"))
    assert sum(store.turns_s) <= total_s + 1e-6
    assert max(store.turns_s) <= turn_s


async def test_a_message_is_found_by_its_place_alone(start: Start) -> None:
    broker = await start()
    (sent,) = await broker.send(CONTEXT, [Message("T", b"one", "ID1", queue_id=2)])
    assert isinstance(sent, Sent)
    for named in ("", broker.name):
        found = await broker.at_place(CONTEXT, named, sent.commit_offset)
        assert (found.topic, found.queue_id, found.offset, found.body) == ("T", 2, 0, b"one")
    for place in (-1, sent.commit_offset + 1, (1 << 63) - 1):
        with pytest.raises(NotFound):
            await broker.at_place(CONTEXT, "", place)
    with pytest.raises(BadRequest, match="elsewhere"):
        await broker.at_place(CONTEXT, "elsewhere", sent.commit_offset)


async def test_what_may_come_again_is_stored_each_time(start: Start) -> None:
    broker = await start()
    for known in (0, 1):
        message = Message("T", b"one", "ID1", queue_id=0, may_come_again=True)
        (sent,) = await broker.send(CONTEXT, [message])
        assert isinstance(sent, Sent)
        assert sent.offset == known
    first, again = [
        (await broker.send(CONTEXT, [Message("T", b"two", "ID2", queue_id=0)]))[0] for _ in range(2)
    ]
    assert first == again
