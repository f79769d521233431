"""Look-up by message id and by key, through the index; every hit is compared with its record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

from brokers.embedded.facet import Facet
from brokers.embedded.keys import (
    HOUR_MS,
    INDEX,
    MOST_QUEUES,
    OFFSET_BITS,
    index_key,
    split_commit_offset,
    split_index_key,
    text_hash,
)
from brokers.embedded.log import stored_message
from brokers.embedded.topics import Topic
from popgate.context import Context
from popgate.message_id import decode_offset_message_id
from popgate.model import StoredMessage
from popgate.wire.properties import KEYS, UNIQ_KEY, find_property

_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()
_MOST_COPIES = 1_024
_FOREVER_MS = 1 << 62
Seek = Callable[[bytes], tuple[bytes, bytes] | None]
_HOURS_PER_TURN = 64
"""Hours of the index looked through before others get a turn."""


class Finding(Facet):
    """The part of the port's `Offsets` that looks messages up."""

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        self._state.check_open()
        self._state.catalogue.topic(topic)
        packed = message_id.encode("utf-8", "replace")
        found = await self._find(
            topic,
            text_hash(b"i", packed),
            lambda message: find_property(message.properties, _UNIQ_KEY) == packed,
            begin_ms=0,
            end_ms=_FOREVER_MS,
            limit=_MOST_COPIES,
        )
        placed = self._find_place(topic, message_id)
        if placed is not None and all(message.commit_offset != placed.commit_offset for message in found):
            found.append(placed)
        return found

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        self._state.check_open()
        self._state.catalogue.topic(topic)
        packed = key.encode("utf-8", "replace")
        return await self._find(
            topic,
            text_hash(b"k", packed),
            lambda message: packed in (find_property(message.properties, _KEYS) or b"").split(b" "),
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=limit,
        )

    # -- inside -------------------------------------------------------------------------------

    async def _find(
        self,
        topic_name: str,
        wanted: int,
        fits: Callable[[StoredMessage], bool],
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
    ) -> list[StoredMessage]:
        """Newest first, hour by hour; the hours are those that the index has."""
        found: list[StoredMessage] = []
        hours = self._hours(begin_ms, end_ms)
        while len(found) < limit and (some := list(islice(hours, _HOURS_PER_TURN))):
            self._state.check_open()
            topic = self._state.catalogue.topic(topic_name)
            seek = self._state.store.seeker(INDEX)
            for hour in some:
                in_hour: list[StoredMessage] = []
                for queue_id, offsets in _places(seek, hour, topic, wanted):
                    self._collect(topic, queue_id, offsets, in_hour, fits, begin_ms, end_ms, limit)
                in_hour.sort(key=lambda message: (message.store_ms, message.offset), reverse=True)
                found += in_hour
                if len(found) >= limit:
                    break
            del seek
            await asyncio.sleep(0)
        return found[: max(limit, 0)]

    def _collect(
        self,
        topic: Topic,
        queue_id: int,
        offsets: Iterator[int],
        found: list[StoredMessage],
        fits: Callable[[StoredMessage], bool],
        begin_ms: int,
        end_ms: int,
        limit: int,
    ) -> None:
        """Add up to `limit` messages of one queue, newest first."""
        visible = topic.queues[queue_id].visible if queue_id < len(topic.queues) else 0
        count = 0
        for offset in offsets:
            record = self._state.log.get(topic, queue_id, offset) if offset < visible else None
            if record is None:
                continue
            message = stored_message(record, self._state.settings.name)
            if begin_ms <= message.store_ms <= end_ms and fits(message):
                found.append(message)
                count += 1
                if count >= limit:
                    return

    def _hours(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The hours in this time that the index may have, newest first."""
        store = self._state.store
        first = store.first(INDEX, b"")
        last = store.last_below(INDEX, b"\xff" * 32)
        if first is None or last is None:
            return iter(())
        lowest = max(split_index_key(first[0])[0], begin_ms // HOUR_MS)
        highest = min(split_index_key(last[0])[0], end_ms // HOUR_MS)
        return iter(range(highest, lowest - 1, -1))

    def _find_place(self, topic_name: str, message_id: str) -> StoredMessage | None:
        """The message that an offset message id of this broker names."""
        try:
            host, place = decode_offset_message_id(message_id)
        except ValueError:
            return None
        if place < 0:
            return None
        topic_id, queue_id, low = split_commit_offset(place)
        topic = self._state.catalogue.topic_by_id(topic_id)
        if topic is None or topic.name != topic_name or queue_id >= len(topic.queues):
            return None
        # The id has the low bits of the offset; the kept ones differ from it by whole wraps.
        queue = topic.queues[queue_id]
        offset = low + ((queue.visible - 1 - low) >> OFFSET_BITS << OFFSET_BITS)
        if not queue.minimum <= offset < queue.visible:
            return None
        record = self._state.log.get(topic, queue_id, offset)
        if record is None:
            return None
        message = stored_message(record, self._state.settings.name)
        return message if message.store_host == host else None


def _places(seek: Seek, hour: int, topic: Topic, wanted: int) -> Iterator[tuple[int, Iterator[int]]]:
    """Each queue that has entries of this hash in this hour, with their offsets, newest first."""
    queue_id = MOST_QUEUES
    prefix = index_key(hour, topic.id, wanted, 0, 0)[:16]
    while True:
        below = seek(index_key(hour, topic.id, wanted, queue_id, 0))
        if below is None or below[0][:16] != prefix:
            return
        queue_id, offset = split_index_key(below[0])[3:]
        yield queue_id, _offsets(seek, hour, topic, wanted, queue_id, offset)


def _offsets(seek: Seek, hour: int, topic: Topic, wanted: int, queue_id: int, offset: int) -> Iterator[int]:
    prefix = index_key(hour, topic.id, wanted, queue_id, 0)[:18]
    while True:
        yield offset
        below = seek(index_key(hour, topic.id, wanted, queue_id, offset))
        if below is None or below[0][:18] != prefix:
            return
        offset = split_index_key(below[0])[4]
