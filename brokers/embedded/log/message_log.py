"""The message log: every queue of every topic, record by record, and the index of ids and keys.

A record gets its offset when it is added, and readers see it when its batch is committed. The
index has one entry per message id and per key, or one for all of a larger batch
(`brokers.embedded.log.index_blocks`), under the hour of the store time; an entry is a hint, and a look-up
compares the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from brokers.embedded.catalog.catalog import QueueState, Topic
from brokers.embedded.log.index_blocks import BLOCK, each, each_of_several, encode_block, fits_block
from brokers.embedded.log.log_reader import LogReader
from brokers.embedded.storage.damaged_records import DamagedRecords, decode_sound
from brokers.embedded.storage.keys import (
    HOUR_MS,
    ID_KIND,
    INDEX,
    MESSAGES,
    OFFSET_BITS,
    QUEUE_BITS,
    commit_offset,
    commit_offsets,
    index_key,
    index_keys,
    message_key,
    message_keys,
    text_hash,
)
from brokers.embedded.storage.record_blocks import join_records
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.errors import PeerWireError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import StoredMessage
from popgate.wire.checksum import crc32
from popgate.wire.messages.record_parts import encode_records
from popgate.wire.messages.records import (
    Record,
    decode_record,
    encode_record,
    host_text,
    pack_host,
    place_record,
)

_LOW_OFFSET = (1 << OFFSET_BITS) - 1
Arrived = Callable[[QueueState, int], None]
"""Called with a queue and how many new messages can be read there."""


class MessageLog:
    """Appends to the store's batch; the caller commits. Reads what is committed."""

    def __init__(self, store: Store, clock: Clock, damages: DamagedRecords | None = None) -> None:
        self.damages = damages if damages is not None else DamagedRecords(store)
        self.on_arrival: Arrived | None = None
        self.on_turn: Callable[[int], None] | None = None
        """Called with the time in ms before the first message of a batch gets its place."""
        self.appended = 0
        """Messages that were committed since the start."""
        self._store = store
        self._clock = clock
        self._reader = LogReader(store)
        self._grown: dict[QueueState, int] = {}
        self._turn = -1

    def append(
        self, topic: Topic, queue_id: int, record: bytes, *, message_id: bytes, keys: Iterable[bytes] = ()
    ) -> int:
        """Add an encoded record, giving it the next place of the queue; the offset it got.

        The topic inside the record is not touched: it must be `topic`'s name already.
        """
        queue = topic.queues[queue_id]
        offset = queue.maximum
        now_ms = self._clock.now_ms()
        store_ms = self._take_place(queue, now_ms, now_ms)
        placed = place_record(
            record,
            queue_id=queue_id,
            offset=offset,
            commit_offset=commit_offset(topic.id, queue_id, offset),
            store_ms=store_ms,
        )
        self._put(topic.id, queue_id, offset, store_ms, placed, message_id, keys)
        return offset

    def append_new(
        self,
        topic: Topic,
        queue_id: int,
        body: bytes,
        properties: bytes,
        message_id: bytes,
        keys: Iterable[bytes],
        now_ms: int,
        sys_flag: int,
        flag: int,
        born_ms: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> int:
        """Encode and add a message; the offset it got. Raises LocalWireError, having added nothing.

        Every send comes here: it makes no call that it can do without, and names no arguments, which
        costs more than to give them in order.
        """
        queue = topic.queues[queue_id]
        topic_id = topic.id
        offset = queue.maximum
        store_ms = now_ms if now_ms > queue.last_store_ms else queue.last_store_ms
        record = encode_record(
            topic.packed_name,
            queue_id,
            offset,
            (topic_id << QUEUE_BITS | queue_id) << OFFSET_BITS | (offset & _LOW_OFFSET),
            body,
            properties,
            sys_flag,
            flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_offset,
        )
        store = self._store
        if self._turn == store.turn:  # `_take_place`, without the call
            self._grown[queue] = queue.maximum = offset + 1
            queue.last_store_ms = store_ms
        else:
            self._take_place(queue, store_ms, now_ms)
        if keys or not message_id:
            self._put(topic_id, queue_id, offset, store_ms, record, message_id, keys)
        else:  # the same for what most messages are
            store.put_message(
                message_key(topic_id, queue_id, offset),
                record,
                # `text_hash`, without the call
                index_key(store_ms // HOUR_MS, topic_id, crc32(message_id) << 8 | ID_KIND, queue_id, offset),
            )
        return offset

    def append_packed(
        self, topic: Topic, queue_id: int, packed: PackedMessages, now_ms: int, store_host: bytes
    ) -> int:
        """Encode and add all of them, one behind the other, as `append_new` does it; the offset of the first.

        They tell their origins and keys. Raises LocalWireError, having added nothing.
        """
        message_ids = packed.message_ids
        count = len(message_ids)
        if count == 1:  # what is done once for all costs more than it saves
            born_ms, host = packed.origins[0]
            return self.append_new(
                topic,
                queue_id,
                packed.bodies[0],
                packed.properties[0],
                message_ids[0],
                packed.keys[0],
                now_ms,
                packed.sys_flag,
                packed.flags[0],
                born_ms or now_ms,
                pack_host(host),
                store_host,
            )
        queue = topic.queues[queue_id]
        topic_id, first = topic.id, queue.maximum
        store_ms = now_ms if now_ms > queue.last_store_ms else queue.last_store_ms
        records = encode_records(
            topic.packed_name,
            queue_id,
            first,
            commit_offsets(topic_id, queue_id, first, count),
            packed.bodies,
            packed.properties,
            packed.flags,
            packed.origins,
            packed.sys_flag,
            now_ms,
            store_ms,
            store_host,
        )
        offsets = range(first, first + count)
        hour = store_ms // HOUR_MS
        # All is encoded before a place is taken: what cannot be leaves no hole in the queue. Of a compacted
        # topic single messages are taken out.
        index: list[bytes] = []
        block = b""
        if not topic.compacted and fits_block(message_ids, packed.keys):
            block = encode_block(message_ids, packed.keys)
        else:
            index = index_keys(hour, topic_id, queue_id, b"i", *each(message_ids, offsets))
            index += index_keys(hour, topic_id, queue_id, b"k", *each_of_several(packed.keys, offsets))
        self._take_place(queue, store_ms, now_ms, places=count)
        if block:
            self._store.put(INDEX, index_key(hour, topic_id, BLOCK, queue_id, first), block)
        if topic.compacted:
            ends: Iterable[int] = offsets
            values = records.each()
        else:
            ends, values = join_records(records, first)
        self._store.put_messages(message_keys(topic_id, queue_id, ends), values, index)
        return first

    def get(self, topic: Topic, queue_id: int, offset: int) -> bytes | None:
        """One committed record; None where there is none any more."""
        return self._reader.get(topic.queues[queue_id], offset) if queue_id < len(topic.queues) else None

    def get_many(self, topic: Topic, queue_id: int, offsets: Iterable[int]) -> list[bytes | None]:
        """Committed records; None where there is none any more."""
        return self._reader.get_many(topic.queues[queue_id], offsets)

    def read(self, topic: Topic, queue_id: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Committed records with begin <= offset < end, in order, as (offset, record)."""
        return self._reader.read(topic.queues[queue_id], begin, end)

    def values(self, topic: Topic, queue_id: int, begin: int, end: int) -> Iterator[bytes]:
        """The same as they are stored, several in one: see `LogReader.values`."""
        return self._reader.values(topic.queues[queue_id], begin, end)

    def reach(self, queue: QueueState, begin: int, count: int) -> int:
        """How far to read for so many records from `begin` on: where offsets are missing, to the end."""
        visible = queue.visible
        return visible if queue.topic.compacted or visible - begin <= count else begin + count

    def offset_at(self, queue: QueueState, time_ms: int) -> int:
        """The first committed offset stored at or after `time_ms`; the visible maximum if there is none.

        By halving: store times of a queue never go back.
        """
        low, high = queue.minimum, queue.visible
        while low < high:
            middle = (low + high) // 2
            at, store_ms = self._first_time(queue, middle, high)
            if store_ms is not None and store_ms < time_ms:
                low = at + 1
            else:
                high = middle
        return low

    def decoded(self, topic: Topic, queue_id: int, offset: int, record: bytes) -> Record | None:
        """The record, or None when it is damaged: then it is reported and skipped."""
        try:
            return decode_record(record)
        except PeerWireError as error:
            self.damages.leave(topic.name, (topic.id, queue_id, offset), error)
            return None

    # -- inside -------------------------------------------------------------------------------

    def _first_time(self, queue: QueueState, begin: int, end: int) -> tuple[int, int | None]:
        """Offset and store time of the first sound record in [begin, end); (`end`, None) if there is none."""
        record = self.get(queue.topic, queue.queue_id, begin)  # mostly there: less than a scan
        decoded = decode_sound(record) if record is not None else None
        if decoded is not None:
            return begin, decoded.store_ms
        for offset, record in self.read(queue.topic, queue.queue_id, begin + 1, end):
            decoded = decode_sound(record)
            if decoded is not None:
                return offset, decoded.store_ms
        return end, None

    def _take_place(self, queue: QueueState, store_ms: int, now_ms: int, *, places: int = 1) -> int:
        """Count the queue's maximum up; the store time of the new places (never before the last one's)."""
        if self._turn != self._store.turn:
            # Each batch raises what its own records reached: a later one may still be on its way.
            self._turn = self._store.turn
            if self.on_turn is not None:
                self.on_turn(now_ms)
            self._grown = {}
            self._store.after_commit(partial(self._raise_visible, self._grown))
        queue.maximum += places
        self._grown[queue] = queue.maximum
        if store_ms > queue.last_store_ms:
            queue.last_store_ms = store_ms
        return queue.last_store_ms

    def _raise_visible(self, grown: dict[QueueState, int]) -> None:
        counts = []
        for queue, maximum in grown.items():
            counts.append((queue, maximum - queue.visible))
            self.appended += maximum - queue.visible
            queue.visible = maximum
        if self.on_arrival is not None:
            for queue, count in counts:
                self.on_arrival(queue, count)

    def _put(
        self,
        topic_id: int,
        queue_id: int,
        offset: int,
        store_ms: int,
        record: bytes,
        message_id: bytes,
        keys: Iterable[bytes],
    ) -> None:
        put = self._store.put
        put(MESSAGES, message_key(topic_id, queue_id, offset), record)
        hour = store_ms // HOUR_MS
        if message_id:
            put(INDEX, index_key(hour, topic_id, text_hash(b"i", message_id), queue_id, offset), b"")
        for key in keys:
            put(INDEX, index_key(hour, topic_id, text_hash(b"k", key), queue_id, offset), b"")


def stored_message(record: bytes, start: int = 0, *, broker: str) -> StoredMessage:
    """The record at `start` as those who look it up see it: no attempt, no receipt. Raises PeerWireError."""
    return as_stored(decode_record(record, start), broker)


def as_stored(record: Record, broker: str) -> StoredMessage:
    """The same for a record that was decoded."""
    return StoredMessage(
        record.topic,
        broker,
        record.queue_id,
        record.offset,
        record.commit_offset,
        record.sys_flag,
        record.flag,
        record.born_ms,
        host_text(record.born_host),
        record.store_ms,
        host_text(record.store_host),
        record.body,
        record.properties,
        reconsume_times=record.reconsume_times,
    )
