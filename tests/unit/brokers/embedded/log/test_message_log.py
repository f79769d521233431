import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.embedded.log.index_blocks import BLOCK, LEAST, places_in
from brokers.embedded.log.message_log import stored_message
from brokers.embedded.storage.keys import (
    HOUR_MS,
    INDEX,
    OFFSET_BITS,
    commit_offset,
    commit_offsets,
    index_key,
    index_keys,
    message_key,
    message_keys,
    split_index_key,
    text_hash,
)
from brokers.embedded.storage.store import Durability
from popgate.errors import LocalWireError
from popgate.messages.packed_messages import PackedMessages
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import decode_record

HOST = pack_host("10.0.0.1:8081")


def add(parts, topic, *, body: bytes = b"body", now_ms: int | None = None, keys=(), message_id=b"id", **rest):
    return parts.log.append_new(
        topic,
        0,
        body,
        b"UNIQ_KEY\x01id\x02",
        message_id=message_id,
        keys=keys,
        now_ms=parts.clock.now_ms() if now_ms is None else now_ms,
        sys_flag=0,
        flag=rest.pop("flag", 0),
        born_ms=5,
        born_host=HOST,
        store_host=HOST,
    )


async def test_a_message_is_seen_when_it_is_committed_and_not_before(parts) -> None:
    topic = await parts.topic()
    queue = topic.queues[0]
    assert [add(parts, topic), add(parts, topic)] == [0, 1]
    assert (queue.maximum, queue.visible) == (2, 0)
    assert list(parts.log.read(topic, 0, 0, 10)) == []
    await parts.store.commit()
    assert queue.visible == 2
    assert [offset for offset, _ in parts.log.read(topic, 0, 0, 10)] == [0, 1]


async def test_with_sync_a_batch_makes_only_its_own_messages_visible(make_parts) -> None:
    parts = make_parts(durability=Durability.SYNC)
    topic = await parts.topic()
    seen = []
    parts.log.on_arrival = lambda queue, count: seen.append((queue.visible, count))
    add(parts, topic)
    first = parts.store.commit()
    await asyncio.sleep(0)  # written, being synced
    add(parts, topic)
    add(parts, topic)
    await asyncio.gather(first, parts.store.commit())
    assert seen == [(1, 1), (3, 2)]


async def test_a_record_gets_its_place(parts) -> None:
    topic = await parts.topic()
    parts.send(topic, 3, "a")
    assert parts.send(topic, 3, "b") == 1
    await parts.store.commit()
    (_, second) = parts.delivered(topic, 3)
    assert (second.queue_id, second.offset, second.store_ms) == (3, 1, parts.clock.now_ms())
    assert second.commit_offset == commit_offset(topic.id, 3, 1)


@pytest.mark.parametrize(
    "first", [0, 7, (1 << OFFSET_BITS) - 2, (1 << OFFSET_BITS) - 1, (1 << OFFSET_BITS) + 5]
)
def test_places_one_behind_the_other_are_those_of_each(first: int) -> None:
    assert [*commit_offsets(3, 1, first, 3)] == [commit_offset(3, 1, first + at) for at in range(3)]


@given(
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 16) - 1),
    st.lists(st.tuples(st.binary(), st.integers(0, (1 << 64) - 1))),
    st.sampled_from([b"i", b"k"]),
)
def test_keys_that_are_made_together_are_those_of_each(
    topic_id: int, queue_id: int, places: list[tuple[bytes, int]], kind: bytes
) -> None:
    texts, offsets = [text for text, _ in places], [offset for _, offset in places]
    assert message_keys(topic_id, queue_id, offsets) == [
        message_key(topic_id, queue_id, offset) for offset in offsets
    ]
    assert index_keys(9, topic_id, queue_id, kind, texts, offsets) == [
        index_key(9, topic_id, text_hash(kind, text), queue_id, offset) for text, offset in places
    ]


async def test_store_times_of_a_queue_never_go_back(parts) -> None:
    topic = await parts.topic()
    now = parts.clock.now_ms()
    for moment in (now, now - 5_000, now + 10, now + 5):
        add(parts, topic, now_ms=moment)
    parts.send(topic, 0, "placed")  # by the clock, which shows `now`
    await parts.store.commit()
    assert [record.store_ms for record in parts.delivered(topic)] == [now, now, now + 10, now + 10, now + 10]


async def test_the_offset_at_a_time_is_the_first_that_was_stored_then_or_later(parts) -> None:
    topic = await parts.topic()
    queue = topic.queues[0]
    assert parts.log.offset_at(queue, 0) == 0
    for moment in (10, 10, 20, 30, 30, 30, 40):
        add(parts, topic, now_ms=moment)
    await parts.store.commit()
    asked = (0, 10, 11, 20, 25, 30, 31, 40, 41)
    assert [parts.log.offset_at(queue, moment) for moment in asked] == [0, 0, 2, 2, 3, 3, 6, 6, 7]
    queue.minimum = 4
    assert parts.log.offset_at(queue, 0) == 4


@pytest.mark.parametrize("count", [1, 4, 5, 100])
async def test_few_and_many_records_are_read_alike(parts, count: int) -> None:
    topic = await parts.topic()
    for number in range(200):
        add(parts, topic, body=b"%d" % number)
    await parts.store.commit()
    found = list(parts.log.read(topic, 0, 7, 7 + count))
    assert [offset for offset, _ in found] == list(range(7, 7 + count))
    assert [decode_record(record).body for _, record in found] == [b"%d" % n for n in range(7, 7 + count)]
    assert parts.log.get(topic, 0, 7) == found[0][1]
    assert parts.log.get_many(topic, 0, [7, 999]) == [found[0][1], None]


def add_packed(parts, topic, ids: list[bytes], keys: list[tuple[bytes, ...]], *, flag: int = 0) -> int:
    count = len(ids)
    packed = PackedMessages(
        topic.name,
        ids,
        [b"body"] * count,
        [b"UNIQ_KEY\x01id\x02"] * count,
        [flag] * count,
        origins=[(5, "10.0.0.1:1")] * count,
        keys=keys,
    )
    return parts.log.append_packed(topic, 0, packed, parts.clock.now_ms(), HOST)


@pytest.mark.parametrize("packed", [False, True])
async def test_the_index_has_the_id_and_every_key_under_the_hour_of_the_store_time(parts, packed) -> None:
    topic = await parts.topic()
    if packed:
        add_packed(parts, topic, [b"the id", b""], [(b"one", b"two"), ()])
    else:
        add(parts, topic, message_id=b"the id", keys=[b"one", b"two"])
        add(parts, topic, message_id=b"")
    await parts.store.commit()
    found = {split_index_key(key) for key, _ in parts.store.scan(INDEX, b"")}
    hour = parts.clock.now_ms() // HOUR_MS
    hashes = [text_hash(b"i", b"the id"), text_hash(b"k", b"one"), text_hash(b"k", b"two")]
    assert found == {(hour, topic.id, one, 0, 0) for one in hashes}


@pytest.mark.parametrize(
    ("count", "compacted", "entries"),
    [(LEAST, False, 1), (LEAST - 1, False, 2 * (LEAST - 1)), (LEAST, True, 2 * LEAST)],
)
async def test_a_batch_has_one_block_in_the_index_unless_it_is_small(
    parts, count, compacted, entries
) -> None:
    """Of a compacted topic, whose messages go one by one, each has an entry of its own."""
    topic = await parts.topic()
    topic.compacted = compacted
    ids = [b"id %d" % n for n in range(count)]
    add_packed(parts, topic, ids, [(b"key %d" % n,) for n in range(count)])
    await parts.store.commit()
    index = list(parts.store.scan(INDEX, b""))
    assert len(index) == entries
    if entries == 1:
        [(entry, block)] = index
        assert split_index_key(entry)[1:] == (topic.id, BLOCK, 0, 0)
        assert places_in(block, text_hash(b"i", ids[3])) == [3]
        assert places_in(block, text_hash(b"k", b"key 3")) == [3]


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_batch_that_was_looked_up_early_is_not_read_before_its_sync(make_parts, behind) -> None:
    """A look-up by id finds what is written already. Readers get it when it can no more be lost."""
    parts = make_parts(durability=Durability.SYNC)
    topic = await parts.topic()
    add_packed(parts, topic, [b"id"] * 9, [()] * 9)
    await parts.store.commit()
    seen = []

    def look() -> None:
        seen.append(parts.log.get(topic, 0, 17) is not None)
        seen.append([*parts.log.values(topic, 0, 9 + behind, 20)])
        seen.append([*parts.log.read(topic, 0, 9 + behind, 20)])

    add_packed(parts, topic, [b"id"] * 9, [()] * 9)
    parts.store.on_syncing = look
    await asyncio.wait_for(parts.store.commit(), 10)
    assert seen == [True, [], []]
    assert [offset for offset, _ in parts.log.read(topic, 0, 12, 20)] == [12, 13, 14, 15, 16, 17]


async def test_who_goes_on_within_a_block_is_given_only_what_is_left_of_it(parts) -> None:
    """Else small pulls from a large block would look at all before them again."""
    topic = await parts.topic()
    add_packed(parts, topic, [b"id"] * 9, [()] * 9)
    await parts.store.commit()
    records = parts.log.get_many(topic, 0, range(9))
    for begin, end in ((0, 3), (3, 5), (5, 9)):
        assert [*parts.log.values(topic, 0, begin, end)] == [b"".join(records[begin:])]


@pytest.mark.parametrize("count", [2, LEAST])
async def test_a_batch_the_index_cannot_tell_of_takes_no_place(parts, count) -> None:
    topic = await parts.topic()
    ids = [b"id %d" % n for n in range(count)]
    with pytest.raises(TypeError):
        add_packed(parts, topic, ids, [(b"a",)] * (count - 1) + [("no bytes",)])
    assert topic.queues[0].maximum == 0
    assert not parts.store.filling


def test_an_id_and_a_key_of_the_same_text_are_told_apart() -> None:
    assert text_hash(b"i", b"x") != text_hash(b"k", b"x")


async def test_a_message_that_cannot_be_encoded_takes_no_place(parts) -> None:
    topic = await parts.topic()
    with pytest.raises(LocalWireError):
        add(parts, topic, flag=1 << 40)
    with pytest.raises(LocalWireError):
        add_packed(parts, topic, [b"a", b"b"], [(), ()], flag=1 << 40)
    assert add(parts, topic) == 0
    await parts.store.commit()
    assert len(parts.delivered(topic)) == 1


async def test_a_stored_message_tells_what_was_stored(parts) -> None:
    topic = await parts.topic()
    add(parts, topic, body=b"hello", flag=7)
    await parts.store.commit()
    ((_, record),) = parts.log.read(topic, 0, 0, 1)
    message = stored_message(record, broker="b")
    assert (message.topic, message.broker, message.body, message.flag) == ("T", "b", b"hello", 7)
    assert (message.born_ms, message.born_host, message.store_host) == (5, "10.0.0.1:8081", "10.0.0.1:8081")
    assert (message.attempt, message.receipt) == (0, "")
