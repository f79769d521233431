"""Records are read as they were stored, whether each lies alone or in a block, from wherever one begins."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.embedded.catalog.catalog import Catalog, QueueState, Topic
from brokers.embedded.log import log_reader
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.log.retention import Retention
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage import record_blocks
from brokers.embedded.storage.damaged_records import decode_sound
from brokers.embedded.storage.record_blocks import block_of, expand, join_records
from brokers.embedded.storage.store import Durability, Store
from popgate.messages.packed_messages import PackedMessages
from popgate.model import TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.plain_records import plain_run
from popgate.wire.messages.record_parts import RecordParts
from popgate.wire.messages.records import decode_record, encode_record

HOST = pack_host("10.0.0.1:8081")
BYTES = 500
"""Of a block here: a few records."""

record = partial(encode_record, b"T", 0)
bodies = st.binary(max_size=300)


def records_of(texts: list[bytes], first: int) -> list[bytes]:
    return [record(first + at, 0, text, b"", 0, 0, 1, HOST, 2, HOST) for at, text in enumerate(texts)]


def joined(records: list[bytes], first: int) -> tuple[list[int], list[bytes]]:
    parts = [part for each in records for part in (each[:88], each[88:90], b"", each[90:])]
    return join_records(RecordParts(parts, [len(each) for each in records]), first)


@given(st.lists(bodies, min_size=1, max_size=30), st.integers(0, 1 << 60))
def test_values_have_every_record_and_no_more_bytes_than_they_may(texts: list[bytes], first: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_blocks, "MOST_BYTES", BYTES)
        records = records_of(texts, first)
        ends, values = joined(records, first)
    assert b"".join(map(expand, values)) == b"".join(records)
    assert ends[-1] == first + len(records) - 1
    begin = first
    for last, value in zip(ends, values, strict=True):
        several = records[begin - first : last + 1 - first]
        assert expand(value) == b"".join(several)
        block = block_of(value, last)
        if len(several) == 1:
            assert block is None
        else:
            assert len(expand(value)) <= BYTES
            assert len(value) <= len(expand(value))
            assert block is not None
            assert (block.first, block.last) == (begin, last)
            assert [block.record(at) for at in range(begin, last + 1)] == several
            assert block.records(begin, last + 1) == several
            assert block.records(begin + 1, last) == several[1:-1]
        begin = last + 1


@given(st.lists(bodies, min_size=2, max_size=9), st.data())
def test_a_damaged_block_is_damaged_records_and_no_hole(texts: list[bytes], choose: st.DataObject) -> None:
    records = records_of(texts, 5)
    hurt = choose.draw(st.integers(1, len(records) - 1), "the record that is damaged")
    spoiled = bytearray(b"".join(records))
    at = sum(map(len, records[:hurt]))
    spoiled[at : at + 4] = choose.draw(
        st.sampled_from([0, 1, 90, len(spoiled), (1 << 32) - 1]).map(lambda size: size.to_bytes(4, "big"))
    )
    block = block_of(bytes(spoiled), 4 + len(records))
    assert block is not None
    assert (block.first, block.last) == (5, 4 + len(records))
    read = [decode_sound(block.record(offset)) for offset in range(5, 5 + len(records))]
    assert [each.body for each in read[:hurt] if each is not None] == texts[:hurt]
    assert read[hurt:] == [None] * (len(records) - hurt)


def test_what_is_alike_is_compressed_and_what_is_not_is_stored_as_it_is() -> None:
    alike = records_of([b"body"] * 30, 7)
    ((last,), (value,)) = joined(alike, 7)
    assert (last, len(value) < len(b"".join(alike)) // 4) == (36, True)
    other = records_of([Random(1).randbytes(3_000), Random(2).randbytes(3_000)], 7)
    assert joined(other, 7) == ([8], [b"".join(other)])
    large = records_of([b"x" * 100_000], 7)
    assert joined(large, 7) == ([7], large)


@given(st.data())
def test_a_compressed_block_that_is_damaged_is_records_that_are(choose: st.DataObject) -> None:
    records = records_of([b"a body of some length"] * 9, 5)
    (_, (value,)) = joined(records, 5)
    spoiled = bytearray(value)
    if choose.draw(st.booleans(), "whether it is cut off"):
        del spoiled[choose.draw(st.integers(12, len(value) - 1)) :]
    else:
        at = choose.draw(st.integers(12, len(value) - 1))
        spoiled[at] = choose.draw(st.integers(0, 255).filter(lambda byte: byte != value[at]))
    block = block_of(bytes(spoiled), 13)
    assert block is not None
    assert (block.first, block.last) == (5, 13)
    for offset in range(5, 14):  # each is there, sound or not, and nothing but that is raised
        decode_sound(block.record(offset))


@pytest.mark.parametrize("size", [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b""])
def test_a_size_that_no_block_has_asks_for_no_memory(size: bytes) -> None:
    assert expand(b"\xff\xff\xff\xff" + bytes(8) + size) == b""


@given(st.lists(bodies, min_size=1, max_size=3), st.integers(0, 27), st.integers(0, 255))
def test_a_record_alone_is_no_block_whatever_is_damaged(texts: list[bytes], at: int, byte: int) -> None:
    spoiled = bytearray(records_of(texts[:1], 300)[0])
    spoiled[at] = byte
    block = block_of(bytes(spoiled), 300)
    # Only its length and its offset together make it look like several, whose last one it is not.
    assert block is None or block.first < 300


class Shelf:
    """One queue, and what was stored in it, by offset."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovableClock()
        self.settings = EmbeddedSettings(durability=Durability.NONE)
        self.store = Store(folder / "store", self.clock, durability=Durability.NONE)
        self.store.open()
        self.names = (f"T{number}" for number in range(1 << 30))

    def load(self) -> None:
        """As a start does it."""
        self.catalogue = Catalog(self.store, self.settings)
        self.catalogue.load()
        self.log = MessageLog(self.store, self.clock)
        self.retention = Retention(self.store, self.log, self.catalogue, self.clock, self.settings)

    async def topic(self) -> Topic:
        self.load()
        made = self.catalogue.create_topic(TopicConfig(next(self.names), read_queues=1, write_queues=1))
        await self.store.commit()
        return made

    async def send(self, topic: Topic, texts: list[bytes]) -> None:
        count = len(texts)
        packed = PackedMessages(
            *(
                topic.name,
                [b"%d" % at for at in range(count)],
                texts,
                [b"TAGS\x01a\x02"] * count,
                [0] * count,
            ),
            origins=[(5, "10.0.0.1:1")] * count,
            keys=[()] * count,
        )
        self.log.append_packed(topic, 0, packed, self.clock.now_ms(), HOST)
        await self.store.commit()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setattr(record_blocks, "MOST_BYTES", BYTES)
    monkeypatch.setattr(log_reader, "_KEPT", 2)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        made = Shelf(Path(folder))
        yield made
        made.store.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(bodies, min_size=1, max_size=12)),
        st.tuples(st.just("floor"), st.integers(0, 20)),
        st.tuples(st.just("start"), st.none()),
    ),
    max_size=8,
)
looks = st.lists(st.tuples(st.integers(-2, 60), st.integers(0, 20)), min_size=1, max_size=8)


def bounds_of(queue: QueueState) -> tuple[int, int, int]:
    return queue.minimum, queue.maximum, queue.visible


def check(log: MessageLog, topic: Topic, kept: dict[int, bytes], begin: int, count: int) -> None:
    """That reads of so many records from an offset on give what is kept, and nothing else."""
    queue = topic.queues[0]
    wanted = {at: kept[at] for at in range(max(begin, 0), begin + count) if at in kept}
    assert {
        at: decode_record(each).body for at, each in log.read(topic, 0, max(begin, 0), begin + count)
    } == (wanted)
    offsets = range(max(begin, 0), begin + count)
    several = log.get_many(topic, 0, offsets)
    assert [each and decode_record(each).body for each in several] == [kept.get(at) for at in offsets]
    for at in offsets:
        alone = log.get(topic, 0, at)
        assert (alone and decode_record(alone).body) == kept.get(at)
    if not queue.minimum <= begin < queue.visible or not count:
        return
    end = min(begin + count, queue.visible)
    run = plain_run(log.values(topic, 0, begin, end), topic.packed_name, begin, count, 1 << 20)
    assert run is not None
    data = b"".join(run.pieces)
    assert [decode_record(data, start).body for start in run.starts] == [*wanted.values()]
    assert [*accumulate(map(len, log.get_many(topic, 0, wanted)), initial=0)] == [*run.starts, len(data)]  # type: ignore[arg-type]
    assert run.body_bytes == sum(map(len, wanted.values()))


def test_everything_is_read_from_wherever_one_begins(shelf: Shelf) -> None:
    async def play(plan: list[tuple[str, Any]], wanted: list[tuple[int, int]]) -> None:
        topic = await shelf.topic()
        kept: dict[int, bytes] = {}
        for kind, detail in plan:
            queue = topic.queues[0]
            if kind == "send":
                kept |= dict(enumerate(detail, queue.maximum))
                await shelf.send(topic, detail)
            elif kind == "floor":
                floor = min(queue.minimum + detail, queue.visible)
                shelf.retention._raise_floor(topic, queue, floor)
                await shelf.store.commit()
                kept = {at: body for at, body in kept.items() if at >= floor}
            else:
                before = bounds_of(queue)
                shelf.load()
                topic = shelf.catalogue.topic(topic.name)
                assert bounds_of(topic.queues[0]) == before
            for begin, count in wanted:
                check(shelf.log, topic, kept, begin, count)

    loop = asyncio.new_event_loop()

    @settings(deadline=None)
    @given(steps, looks)
    def run(plan: list[tuple[str, Any]], wanted: list[tuple[int, int]]) -> None:
        loop.run_until_complete(play(plan, wanted))

    try:
        run()
    finally:
        loop.close()
