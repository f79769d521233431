"""Records that a pull passes on as they are stored: only what would decode, and to the same messages."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.log.message_log import stored_message
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.column_families import ColumnFamilies
from brokers.embedded.storage.keys import MESSAGES, message_key
from popgate.context import Context
from popgate.errors import BrokerUnavailable, PeerWireError
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.messages.stored_records import StoredRecords, body_bytes, held_bytes
from popgate.model import FilterKind, Message, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.plain_records import plain_parts, plain_run
from popgate.wire.messages.records import decode_record, encode_record, place_record

CONTEXT = Context()
RED = compile_filter(FilterKind.TAG, "red")
HOSTS = [pack_host("10.0.0.1:5"), pack_host("[::1]:5")]


def record(topic: str, body: bytes, properties: bytes, born: bytes, stored: bytes) -> bytes:
    return encode_record(topic.encode(), 1, 7, 70, body, properties, 0, 0, 1_000, born, 2_000, stored)


records = st.builds(
    record,
    st.sampled_from(["T", "t" * 127, "t" * 128, "t" * 300, "tür"]),
    st.binary(max_size=50),
    st.sampled_from([b"", b"TAGS\x01red\x02", b"A\x01" + b"x" * 300 + b"\x02"]),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
)


class TestWhatIsPassedOn:
    @given(records)
    def test_is_whole_and_plain(self, data: bytes) -> None:
        found = decode_record(data)
        plain = found.topic.isascii() and len(found.born_host) == len(found.store_host) == 8
        block_at = len(data) - len(found.properties)
        expected = (len(data), found.offset, len(found.body), block_at) if plain else None
        assert plain_parts(data) == expected

    @given(records, st.data())
    def test_is_nothing_that_does_not_decode(self, data: bytes, choose: st.DataObject) -> None:
        spoiled = bytearray(data)
        for _ in range(choose.draw(st.integers(1, 3))):
            spoiled[choose.draw(st.integers(0, len(spoiled) - 1))] = choose.draw(st.integers(0, 255))
        spoiled += choose.draw(st.binary(max_size=3))
        cut = bytes(spoiled[: choose.draw(st.integers(0, len(spoiled)))])
        for each in (bytes(spoiled), cut):
            parts = plain_parts(each)
            if parts is not None:
                found = decode_record(each)
                block_at = found.size - len(found.properties)
                assert parts == (found.size, found.offset, len(found.body), block_at)

    @given(st.lists(records, max_size=4), st.integers(-1, 400), st.integers(0, 255), st.integers(-9, 2))
    def test_is_the_same_in_a_run(self, several: list[bytes], at: int, byte: int, more: int) -> None:
        several = [
            place_record(each, queue_id=1, offset=7 + number, commit_offset=1, store_ms=2)
            for number, each in enumerate(several)
        ]
        if several:
            last = bytearray(several[-1])
            if 0 <= at < len(last):
                last[at] = byte
            several[-1] = bytes(last[:more] if more < 0 else last + bytes(more))
        parts = [plain_parts(each) for each in several]
        plain = [each[:3] for each in parts if each is not None]
        wanted = [(len(each), number) for number, each in enumerate(several, 7)]
        for topic in ("T", "t" * 127, "t" * 128, "tür"):
            run = plain_run(several, topic.encode(), 7, 5, 1 << 20)
            if [each[:2] for each in plain] != wanted:
                assert run is None
                continue
            assert run is not None
            assert run.pieces == several
            assert run.starts == [sum(map(len, several[:number])) for number in range(len(several))]
            assert (run.body_bytes, run.is_cut) == (sum(length for *_, length in plain), False)

    @pytest.mark.parametrize("properties", [b"", b"TAGS\x01red\x02"])
    def test_is_no_run_whichever_byte_of_it_is_damaged(self, properties: bytes) -> None:
        first, second = (
            place_record(
                record("T", b"body", properties, HOSTS[0], HOSTS[0]),
                queue_id=1,
                offset=offset,
                commit_offset=1,
                store_ms=2,
            )
            for offset in (7, 8)
        )
        for at, byte in product(range(len(second)), range(256)):
            spoiled = bytearray(second)
            spoiled[at] = byte
            parts = plain_parts(bytes(spoiled))
            plain = parts is not None and parts[:2] == (len(second), 8)
            for before, begins in (([], 8), ([first], 7)):
                run = plain_run([*before, bytes(spoiled)], b"T", begins, 5, 1 << 20)
                assert (run is not None) == plain, (at, byte, begins)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """With a topic T of one queue."""
    broker = EmbeddedBroker(tmp_path / "store", clock=MovableClock())
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    yield broker
    await broker.stop()


async def send(broker: EmbeddedBroker, bodies: Sequence[bytes]) -> None:
    sending = [Message("T", body, tag="red", keys=(f"k{len(body)}",)) for body in bodies]
    await broker.send(CONTEXT, sending)


async def test_they_are_the_messages_that_decoding_finds(broker: EmbeddedBroker) -> None:
    await send(broker, [b"%d" % number for number in range(20)])
    limits: dict[str, Any] = {"max_messages": 9, "max_bytes": 1 << 20, "wait_until": None}
    passed = await broker.pull(CONTEXT, "T", "", 0, 3, passing=EVERYTHING, **limits)
    decoded = await broker.pull(CONTEXT, "T", "", 0, 3, passing=RED, **limits)
    assert isinstance(passed.messages, StoredRecords)
    assert isinstance(decoded.messages, list)
    assert list(passed.messages) == decoded.messages
    assert passed.messages[1:3] == decoded.messages[1:3]
    assert (passed.next_offset, passed.bounds) == (12, decoded.bounds)
    assert decoded.next_offset == 12
    assert body_bytes(passed.messages) == body_bytes(decoded.messages)
    assert held_bytes(passed.messages) > held_bytes(decoded.messages)


@pytest.mark.parametrize("passing", [EVERYTHING, RED], ids=["everything", "red"])
async def test_bytes_are_bounded_but_for_the_first(broker: EmbeddedBroker, passing: Any) -> None:
    await send(broker, [b"x" * 1000] * 4)
    for room, count in ((1, 1), (1500, 1), (2600, 2), (1 << 20, 4)):
        pulled = await broker.pull(
            CONTEXT, "T", "", 0, 0, max_messages=9, max_bytes=room, passing=passing, wait_until=None
        )
        assert (len(pulled.messages), pulled.next_offset) == (count, count)


@pytest.mark.parametrize("passing", [EVERYTHING, RED], ids=["everything", "red"])
async def test_a_full_pull_does_not_look_behind_holes(broker: EmbeddedBroker, passing: Any) -> None:
    await broker.create_topic(
        TopicConfig("C", read_queues=1, write_queues=1, attributes={"cleanup.policy": "COMPACTION"})
    )
    await broker.send(CONTEXT, [Message("C", b"x", tag="red", keys=(f"k{number}",)) for number in range(4)])
    state = broker._engine
    for offset in (1, 2):
        state.store.delete(MESSAGES, message_key(state.catalogue.topic("C").id, 0, offset))
    await state.store.commit()
    for most, offsets, following in ((1, [0], 1), (2, [0, 3], 4), (9, [0, 3], 4)):
        pulled = await broker.pull(
            CONTEXT, "C", "", 0, 0, max_messages=most, max_bytes=1 << 20, passing=passing, wait_until=None
        )
        assert ([message.offset for message in pulled.messages], pulled.next_offset) == (offsets, following)


async def test_a_garbled_block_is_an_error_and_never_the_end_of_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    broker = EmbeddedBroker(path, clock=MovableClock())
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    for _ in range(8):
        await send(broker, [os.urandom(400) for _ in range(50)])
    await broker.stop()
    table = max(path.rglob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 64):
        data[at] ^= 0xFF
    table.write_bytes(data)
    # It looks for what was sent lately, and would find it at once.
    forgetful = EmbeddedSettings(dedup_window_ms=0)
    broker = EmbeddedBroker(path, clock=MovableClock(), settings=forgetful)
    await broker.start()
    try:
        for offset in (0, 150):
            with pytest.raises(BrokerUnavailable, match="cannot be read"):
                await broker.pull(
                    CONTEXT,
                    "T",
                    "",
                    0,
                    offset,
                    max_messages=250,
                    max_bytes=1 << 20,
                    passing=EVERYTHING,
                    wait_until=None,
                )
    finally:
        await broker.stop()


@pytest.mark.parametrize("named", [7, 4000])
async def test_a_record_that_names_another_offset_is_decoded(broker: EmbeddedBroker, named: int) -> None:
    """What it says must not lead a reader on, nor leave out what lies between."""
    await send(broker, [b"%d" % number for number in range(9)])
    state = broker._engine
    key = message_key(state.catalogue.topic("T").id, 0, 4)
    stored = state.store.get(MESSAGES, key)
    assert stored is not None
    state.store.put(
        MESSAGES, key, place_record(stored, queue_id=0, offset=named, commit_offset=1, store_ms=1)
    )
    await state.store.commit()
    for room in (1 << 20, 4 * len(stored), 1):
        bodies: list[bytes] = []
        offset = 0
        while offset < 9:
            pulled = await broker.pull(
                CONTEXT,
                "T",
                "",
                0,
                offset,
                max_messages=9,
                max_bytes=room,
                passing=EVERYTHING,
                wait_until=None,
            )
            assert pulled.next_offset > offset
            bodies += [message.body for message in pulled.messages]
            offset = pulled.next_offset
        assert bodies == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("read", [0, 10])
async def test_records_that_end_early_are_read_by_their_offsets(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """RocksDB ends an iteration over values where it cannot read on, also when it can a moment later."""
    await send(broker, [b"%d" % number for number in range(200)])
    whole = ColumnFamilies.values
    monkeypatch.setattr(ColumnFamilies, "values", lambda *place: islice(whole(*place), read))
    pulled = await broker.pull(
        CONTEXT, "T", "", 0, 0, max_messages=100, max_bytes=1 << 20, passing=EVERYTHING, wait_until=None
    )
    assert [message.body for message in pulled.messages] == [b"%d" % number for number in range(100)]
    assert pulled.next_offset == 100


def test_what_is_damaged_raises_when_it_is_read() -> None:
    with pytest.raises(PeerWireError):
        stored_message(b"nothing", broker="broker")
