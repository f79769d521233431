"""What the embedded broker takes packed is stored, and told, as if its messages came one by one."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.catalog.catalog import Topic
from brokers.embedded.log.index_blocks import BLOCK
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import (
    INDEX,
    MESSAGES,
    META,
    SPACES,
    index_key,
    message_key,
    split_index_key,
    split_message_key,
)
from brokers.embedded.storage.record_blocks import expand
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, Sent, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import decode_records

CONTEXT = Context(client_id="model")
WINDOW_MS = 8_000

messages = st.tuples(
    st.integers(0, 12),  # of few ids, so that some come again
    st.binary(max_size=6),
    st.integers(-2, 2),
    st.integers(0, 5),
    st.sampled_from(["10.0.0.1:1", "[fe80::1]:5", "no address", ""]),
    st.lists(st.sampled_from(["a", "b c", "ü"]), max_size=3).map(tuple),
    st.sampled_from(["", "x", "x" * 1_200]),
)
ways = st.tuples(st.integers(-1, 2), st.booleans())
"""The queue, and whether ids that were sent before are sent again."""
several = st.one_of(
    st.lists(messages, min_size=1, max_size=6),
    # So many that the index has a block of them, and of ids that are not sent twice.
    st.lists(messages, min_size=16, max_size=20).map(
        lambda some: [(at, *said) for at, (_, *said) in enumerate(some)]
    ),
)
sends = st.tuples(st.sampled_from(["one", "other"]), several, ways)
turns = st.tuples(
    st.lists(sends, min_size=1, max_size=3), st.sampled_from([0, 1, 900, WINDOW_MS, -5, 3_600_000])
)


class Pair:
    """Two brokers of one clock: the first is sent what is packed one by one, the other as it is."""

    def __init__(self, folder: Path, window_ms: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = MovableClock()
        self.serials = count()
        kept = EmbeddedSettings(durability=Durability.NONE, dedup_window_ms=window_ms)
        self.brokers = [
            EmbeddedBroker(folder / name, clock=self.clock, settings=kept)
            for name in ("one by one", "packed")
        ]
        for broker in self.brokers:
            self.loop.run_until_complete(broker.start())

    def close(self) -> None:
        for broker in self.brokers:
            self.loop.run_until_complete(broker.stop())
        self.loop.close()

    async def play(self, told: list[tuple[list[PackedMessages], int]], topics: list[str]) -> None:
        one_by_one, packed = self.brokers
        for name in topics:
            for broker in self.brokers:
                await broker.create_topic(TopicConfig(name, read_queues=3, write_queues=3))
        for batches, gap_ms in told:
            told_singly = await asyncio.gather(
                *(one_by_one.send(CONTEXT, batch.unpack()) for batch in batches)
            )
            told_packed = await asyncio.gather(*(packed.send_packed(CONTEXT, batch) for batch in batches))
            assert [[*results] for results in told_packed] == told_singly
            assert all(isinstance(one, Sent) for results in told_packed for one in results)
            if gap_ms > 0:
                self.clock.advance(gap_ms / 1000)
            elif gap_ms:
                self.clock.set_wall(self.clock.now_ms() + gap_ms)
        kept = [space for space in SPACES if space != META]  # which has a secret
        first, second = (
            {space: [*broker._engine.store.scan(space, b"")] for space in kept} for broker in self.brokers
        )
        second[INDEX] = sorted(set(taken_apart(second[INDEX])))  # a message may have a key twice
        second[MESSAGES] = list(one_by_one_of(second[MESSAGES]))
        assert first == second


def taken_apart(entries: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The index as it would be without blocks of several messages."""
    for entry, block in entries:
        hour, topic_id, hashed, queue_id, first = split_index_key(entry)
        if hashed != BLOCK:
            yield entry, block
            continue
        ids, keys, flags = struct.unpack_from(">HHB", block)
        sums = struct.unpack_from(f">{ids + keys}I", block, 5)
        lists = iter(struct.unpack(f">{(len(block) - 5) // 2 - 2 * len(sums)}H", block[5 + 4 * len(sums) :]))
        for kind, some, listed in ((b"i", sums[:ids], flags & 1), (b"k", sums[ids:], flags & 2)):
            for at, checksum in enumerate(some):
                place = next(lists) if listed else at
                yield index_key(hour, topic_id, checksum << 8 | kind[0], queue_id, first + place), b""
        assert not [*lists]


def one_by_one_of(entries: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The records as they would be without blocks of several."""
    for entry, stored in entries:
        *place, last = split_message_key(entry)
        value = expand(stored)
        several = list(decode_records(value))
        at = 0
        for offset, record in enumerate(several, last + 1 - len(several)):
            yield message_key(*place, offset), value[at : at + record.size]
            at += record.size


@pytest.fixture(params=[WINDOW_MS, 0], ids=["repeats known", "repeats not known"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        made = Pair(Path(folder), request.param)
        yield made
        made.close()


def packed(topic: str, serial: int, said: list[tuple], way: tuple[int, bool] = (-1, False)) -> PackedMessages:
    queue_id, may_come_again = way
    ids = [f"{serial}-{number}" for number, *_ in said]
    shared: dict[tuple[int, str], tuple[int, str]] = {}
    """Those that were born together have one origin, as in what doors pack."""
    return PackedMessages(
        topic,
        [name.encode() for name in ids],
        [body for _, body, *_ in said],
        [
            encode_properties({"UNIQ_KEY": name, "KEYS": " ".join(keys), "more": more})
            for name, (*_, keys, more) in zip(ids, said, strict=True)
        ],
        [flag for _, _, flag, *_ in said],
        producer_group=topic,
        origins=[shared.setdefault((born_ms, host), (born_ms, host)) for _, _, _, born_ms, host, *_ in said],
        keys=[tuple(key.encode() for key in keys) for *_, keys, _ in said],
        broker="popgate" if queue_id >= 0 else "",
        queue_id=queue_id,
        may_come_again=may_come_again,
    )


def test_both_ways_store_and_tell_the_same(pair: Pair) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(turns, max_size=4))
    def agree(plan: list) -> None:
        serial = next(pair.serials)
        topics = {name: f"{name}-{serial}" for name in ("one", "other")}
        told = [
            ([packed(topics[name], serial, said, way) for name, said, way in batches], gap)
            for batches, gap in plan
        ]
        pair.loop.run_until_complete(pair.play(told, list(topics.values())))

    agree()


def test_a_segment_of_ids_that_is_filled_by_packed_sends_is_the_same(pair: Pair) -> None:
    batches = [
        packed("many", at, [(n, b"b", 0, 7, "10.0.0.1:1", (), "") for n in range(32)]) for at in range(40)
    ]
    pair.loop.run_until_complete(pair.play([([batch], 1) for batch in batches * 2], ["many"]))


@pytest.mark.parametrize("together", [1, 32, 1_024])
def test_a_send_that_closes_a_segment_of_ids_is_known_when_it_comes_again(pair: Pair, together: int) -> None:
    """Of messages that all must come twice none is known; when enough of them are stored, a segment is closed
    by the next send."""

    def some(serial: int, size: int, *, twice: bool) -> PackedMessages:
        said = [(n, b"b", 0, 7, "10.0.0.1:1", (), "") for n in range(size)]
        return packed("closed", serial, said, (0, twice))

    turns = []
    for at in range(3):
        filling = [some(100 * at + n, 32, twice=True) for n in range(32)]
        turns += [(filling, 1), *([([some(100 * at + 50, together, twice=False)], 1)] * 2)]
    pair.loop.run_until_complete(pair.play(turns, ["closed"]))


def test_only_messages_that_may_have_come_before_are_looked_at_one_by_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pair.brokers[1]
    pair.loop.run_until_complete(broker.create_topic(TopicConfig("T", read_queues=3, write_queues=3)))
    looked: list[str] = []
    add = EmbeddedBroker._add

    def looking(self: EmbeddedBroker, topic: Topic, message: Message, now_ms: int) -> Sent:
        looked.append(message.message_id)
        return add(self, topic, message, now_ms)

    monkeypatch.setattr(EmbeddedBroker, "_add", looking)
    for numbers, wanted in (((1, 2), []), ((2, 3), ["0-2", "0-3"])):
        some = packed("T", 0, [(number, b"b", 0, 7, "10.0.0.1:1", ("k",), "") for number in numbers])
        pair.loop.run_until_complete(broker.send_packed(CONTEXT, some))
        assert looked == (wanted if broker.settings.dedup_window_ms else [])


@pytest.mark.parametrize(("broker", "queue_id"), [("popgate", 3), ("elsewhere", 0)])
def test_a_queue_that_is_not_there_is_refused(pair: Pair, broker: str, queue_id: int) -> None:
    store = pair.brokers[1]
    pair.loop.run_until_complete(store.create_topic(TopicConfig("T", read_queues=3, write_queues=3)))
    some = replace(packed("T", 0, [(1, b"b", 0, 7, "", (), "")] * 2), broker=broker, queue_id=queue_id)

    with pytest.raises(GatewayError):
        pair.loop.run_until_complete(store.send_packed(CONTEXT, some))
