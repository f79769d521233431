"""The number of bytes in a queue, exact enough to keep a topic within its size limit.

Sends pay nothing for it. Records of topics with a limit are read once after they were stored, in
small steps, and whenever a segment is full, a mark in `sizes` stores the bytes between two
marks. So the sum survives a restart without reading the messages again, whole segments can be
removed without reading them, and memory holds one sum per queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokers.embedded.catalog.catalog import QueueState, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.storage.keys import SIZES, message_key, split_message_key
from brokers.embedded.storage.store import Store

SMALLEST_SEGMENT = 4096
_SEGMENTS = 32
"""Segments that a queue's share of the bound is divided into: the precision of what is removed."""
_MOST_AT_ONCE = 64
_MOST_BYTES_AT_ONCE = 1024 * 1024


def segment_bytes(limit: int, queues: int) -> int:
    """How much is removed at once from a topic that may hold `limit` bytes."""
    return max(limit // (_SEGMENTS * queues), SMALLEST_SEGMENT)


class QueueSize:
    """The bytes of one queue, from its first kept message on.

    Marks are added to the store's batch, and seen here once that is written.
    """

    __slots__ = ("_log", "_measured_to", "_queue", "_store", "_tail", "_topic", "marked")

    def __init__(self, store: Store, log: MessageLog, topic: Topic, queue: QueueState) -> None:
        self._store = store
        self._log = log
        self._topic = topic
        self._queue = queue
        self.marked = 0
        self._measured_to = queue.minimum
        for key, value in store.scan(SIZES, self._key(queue.minimum + 1), self._key_beyond()):
            self.marked += int.from_bytes(value, "big")
            self._measured_to = split_message_key(key)[2]
        self._tail = 0

    def __repr__(self) -> str:
        return f"<QueueSize {self._topic.name}/{self._queue.queue_id} {self.total} to {self._measured_to}>"

    @property
    def total(self) -> int:
        """Bytes of what was measured; at most a segment too much after a floor rose within one."""
        return self.marked + self._tail

    def measure(self, segment: int) -> Iterator[int]:
        """Measure new records, a part per step; yields the number of records that a step read."""
        while self._measured_to < self._queue.visible:
            count = size = 0
            # Not to the end: the block in which this step ends is kept for the next one.
            end = min(self._measured_to + _MOST_AT_ONCE, self._queue.visible)
            for offset, record in self._log.read(self._topic, self._queue.queue_id, self._measured_to, end):
                count += 1
                size += len(record)
                self._tail += len(record)
                self._measured_to = offset + 1
                if self._tail >= segment:
                    self._mark()
                if size >= _MOST_BYTES_AT_ONCE:
                    break
            else:
                self._measured_to = end
            yield count + 1

    def first_mark(self) -> int | None:
        """The end of the oldest whole segment; None when there is none."""
        entry = self._store.first(SIZES, self._key(self._queue.minimum + 1), self._key_beyond())
        return None if entry is None else split_message_key(entry[0])[2]

    def floor_rose(self, old: int, floor: int) -> None:
        """Forget the segments that ended at or below the new floor."""
        begin, end = self._key(old + 1), self._key(floor + 1)
        for _, value in self._store.scan(SIZES, begin, end):
            self.marked -= int.from_bytes(value, "big")
        forget_marks(self._store, self._topic.id, self._queue.queue_id, old, floor)
        if floor >= self._measured_to:
            self._measured_to = floor
            self.marked = self._tail = 0

    def _mark(self) -> None:
        self._store.put(SIZES, self._key(self._measured_to), self._tail.to_bytes(8, "big"))
        self.marked += self._tail
        self._tail = 0

    def _key(self, offset: int) -> bytes:
        return message_key(self._topic.id, self._queue.queue_id, offset)

    def _key_beyond(self) -> bytes:
        return self._key((1 << 64) - 1)


def forget_marks(store: Store, topic_id: int, queue_id: int, old: int, floor: int) -> None:
    """Remove the marks of a queue in (old, floor]."""
    begin, end = message_key(topic_id, queue_id, old + 1), message_key(topic_id, queue_id, floor + 1)
    if store.first(SIZES, begin, end) is not None:
        store.delete_range(SIZES, begin, end)
