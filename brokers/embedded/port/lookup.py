"""Look-up by message id and by key, through the index; every hit is compared with its record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import groupby, islice
from operator import itemgetter
from time import perf_counter
from typing import NamedTuple

from brokers.capabilities import FindsByPlace
from brokers.embedded.catalog.catalog import Topic
from brokers.embedded.engine.engine import Engine
from brokers.embedded.engine.facet import Facet
from brokers.embedded.groups.pop_attempt import cost_of
from brokers.embedded.log.index_blocks import BLOCK, places_in
from brokers.embedded.log.message_log import as_stored
from brokers.embedded.storage.keys import (
    HOUR_MS,
    INDEX,
    MOST_QUEUES,
    OFFSET_BITS,
    index_key,
    split_commit_offset,
    split_index_key,
    text_hash,
)
from brokers.embedded.storage.record_blocks import MOST_BYTES
from brokers.embedded.storage.store import Store
from popgate.context import Context
from popgate.errors import BadRequest, NotFound, shown
from popgate.ids.message_id import decode_offset_message_id
from popgate.model import StoredMessage
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property
from popgate.wire.messages.records import Record

_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()
_MOST_COPIES = 1_024
_FOREVER_MS = 1 << 62
Seek = Callable[[bytes], tuple[bytes, bytes] | None]
_PAGE = 256
_BLOCKS = 1_024
_BLOCK_BYTES = 1 << 20
"""So many, or so much of them, are looked through by one cursor, in some 2 ms, or more (`_hits`)."""
_HOURS_AT_ONCE = 128
_WORK_PER_TURN = 1_024
"""Records, or 4 KiB of them, or hours of the index, before others get a turn."""
_BLOCK_WORK = MOST_BYTES >> 12
"""What it takes beside the record to read the block that it may lie in."""
_BOUNDS_WORK = 128
"""What it takes to find the bounds of a search in a queue, twice by halving."""


class LookupFacet(Facet, FindsByPlace):
    """The part of the port's `Offsets` that looks messages up."""

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        engine = self._engine
        engine.check_open()
        name = engine.settings.name
        if broker not in ("", name):
            raise BadRequest(f"there is no broker {shown(broker)}")
        stored = record_at(engine, commit_offset) if commit_offset >= 0 else None
        if stored is None:
            raise NotFound(f"broker {name} has no message at {commit_offset}")
        return as_stored(stored[1], name)

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        self._engine.check_open()
        self._engine.catalogue.topic(topic)
        packed = message_id.encode("utf-8", "replace")
        messages = await self._find(
            topic,
            text_hash(b"i", packed),
            lambda message: find_property(message.properties, _UNIQ_KEY) == packed,
            begin_ms=0,
            end_ms=_FOREVER_MS,
            limit=_MOST_COPIES,
        )
        placed = self._find_place(topic, message_id)
        if placed is not None and all(message.commit_offset != placed.commit_offset for message in messages):
            messages.append(placed)
        return messages

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        self._engine.check_open()
        self._engine.catalogue.topic(topic)
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
        newest = _Newest(limit, self._engine.settings.max_found_bytes)
        pace = _Pace()
        hours = self._hours(begin_ms, end_ms)
        while some := list(islice(hours, _HOURS_AT_ONCE)):
            await pace.rest()
            topic = self._topic_now(topic_name)
            seek = self._engine.store.seeker(INDEX)
            places: list[tuple[int, int | None]] = []
            for hour in some:
                places += [(hour, queue_id) for queue_id in _queues(seek, hour, topic, wanted)]
                if _has_blocks(seek, hour, topic):
                    places.append((hour, None))
            del seek
            for hour, same in groupby(places, key=itemgetter(0)):
                search = _Search(topic, hour, wanted, begin_ms, end_ms, fits)
                for _, queue_id in same:
                    if queue_id is None:
                        await self._collect_from_blocks(search, newest, pace)
                    else:
                        await self._collect(search, queue_id, newest, pace)
                if newest.full:
                    return newest.messages()
        return newest.messages()

    def _topic_now(self, name: str) -> Topic:
        self._engine.check_open()
        return self._engine.catalogue.topic(name)

    async def _collect(self, search: _Search, queue_id: int, newest: _Newest, pace: _Pace) -> None:
        """Add the messages of one queue and hour, newest first, until what follows is too old to be kept."""
        lowest, beyond = self._bounds(search, queue_id)
        page = [beyond] * _PAGE
        while len(page) == _PAGE:
            await pace.rest()
            self._topic_now(search.topic.name)
            page = _offsets(self._engine.store.seeker(INDEX), search, queue_id, lowest, page[-1])
            for offset in page:
                if not await self._add_found(search, queue_id, offset, newest, pace):
                    return

    async def _collect_from_blocks(self, search: _Search, newest: _Newest, pace: _Pace) -> None:
        """The same of messages of an hour that have blocks in the index, one queue after the other."""
        begin, end = search.key(0, 0), search.key(MOST_QUEUES, 0)
        bounds: dict[int, tuple[int, int]] = {}
        ended = -1
        while begin < end:
            await pace.rest()
            self._topic_now(search.topic.name)
            hits, end = _hits(self._engine.store, begin, end, search.wanted)
            for queue_id, offset in hits:
                if queue_id == ended:
                    continue
                if queue_id not in bounds:
                    await pace.spend(_BOUNDS_WORK)
                    bounds[queue_id] = self._bounds(search, queue_id)
                lowest, beyond = bounds[queue_id]
                if offset >= beyond:
                    # No block that begins there has an offset before it.
                    end = min(end, search.key(queue_id, beyond))
                    continue
                if offset < lowest or not await self._add_found(search, queue_id, offset, newest, pace):
                    ended = queue_id
                    end = min(end, search.key(queue_id, 0))

    def _bounds(self, search: _Search, queue_id: int) -> tuple[int, int]:
        """The first offset of the search in a queue, and that behind its last one."""
        log, topic = self._engine.log, search.topic
        if queue_id >= len(topic.queues):
            return 0, 0
        queue = topic.queues[queue_id]
        # Store times of a queue never go back: what is too new or too old need not be read.
        lowest = max(log.offset_at(queue, search.begin_ms), queue.minimum)
        return lowest, log.offset_at(queue, search.end_ms + 1)

    async def _add_found(
        self, search: _Search, queue_id: int, offset: int, newest: _Newest, pace: _Pace
    ) -> bool:
        """Add a message, if it is one that is searched for; whether an older one might still be kept."""
        log, topic = self._engine.log, search.topic
        record = log.get(topic, queue_id, offset)
        await pace.spend(cost_of(record) + _BLOCK_WORK)
        sound = log.decoded(topic, queue_id, offset, record) if record is not None else None
        if record is None or sound is None:
            return True
        message = as_stored(sound, self._engine.settings.name)
        if not search.begin_ms <= message.store_ms <= search.end_ms or not search.fits(message):
            return True
        return newest.add(message, len(record))

    def _hours(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The hours in this time that the index may have, newest first."""
        store = self._engine.store
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
        stored = record_at(self._engine, place)
        if stored is None or stored[0].name != topic_name:
            return None
        message = as_stored(stored[1], self._engine.settings.name)
        return message if message.store_host == host else None


def record_at(engine: Engine, place: int) -> tuple[Topic, Record] | None:
    """The message at a commit log offset, and the topic that it lies in; None where none is, or none more."""
    topic_id, queue_id, low = split_commit_offset(place)
    topic = engine.catalogue.topic_by_id(topic_id)
    if topic is None or queue_id >= len(topic.queues):
        return None
    # The place has the low bits of the offset; the kept ones differ from it by whole wraps.
    queue = topic.queues[queue_id]
    offset = low + ((queue.visible - 1 - low) >> OFFSET_BITS << OFFSET_BITS)
    if not queue.minimum <= offset < queue.visible:
        return None
    record = engine.log.get(topic, queue_id, offset)
    decoded = engine.log.decoded(topic, queue_id, offset, record) if record is not None else None
    return None if decoded is None else (topic, decoded)


class _Pace:
    """Lets others have a turn after so much work."""

    def __init__(self) -> None:
        self._left = _WORK_PER_TURN

    async def spend(self, cost: int) -> None:
        self._left -= cost
        if self._left <= 0:
            self._left = _WORK_PER_TURN
            await asyncio.sleep(0)

    async def rest(self) -> None:
        """Before a cursor over the index is made: that sorts what the index has in memory."""
        await self.spend(_WORK_PER_TURN)


class _Newest:
    """Keeps the newest of the messages that it is given: so many, and so many bytes of records.

    The newest of all is kept however large it is. Once one did not fit, no older one is kept.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = max(most, 0)
        self._bytes_left = most_bytes
        self._heap: list[tuple[tuple[int, int, int], int, StoredMessage]] = []
        self._ages: set[tuple[int, int, int]] = set()
        """Of what is kept: after a loss the index may have one message twice."""
        self._too_old = (-1, 0, 0)

    @property
    def full(self) -> bool:
        """Whether no older message can be kept."""
        return len(self._heap) >= self._most or self._too_old[0] >= 0

    def add(self, message: StoredMessage, size: int) -> bool:
        """Whether one that is older might still be kept."""
        age = (message.store_ms, message.offset, -message.queue_id)
        if age <= self._too_old:
            return False
        if age in self._ages:
            return True
        heap = self._heap
        heappush(heap, (age, size, message))
        self._ages.add(age)
        self._bytes_left -= size
        while len(heap) > self._most or (self._bytes_left < 0 and len(heap) > 1):
            self._too_old, dropped, _ = heappop(heap)
            self._ages.remove(self._too_old)
            self._bytes_left += dropped
        return age > self._too_old and (len(heap) < self._most or heap[0][0] != age)

    def messages(self) -> list[StoredMessage]:
        """What was kept, newest first."""
        return [message for _, _, message in sorted(self._heap, key=itemgetter(0), reverse=True)]


class _Search(NamedTuple):
    """What is looked for in one hour of the index, and what of it is kept."""

    topic: Topic
    hour: int
    wanted: int
    begin_ms: int
    end_ms: int
    fits: Callable[[StoredMessage], bool]

    def key(self, queue_id: int, offset: int) -> bytes:
        """Of a block."""
        return index_key(self.hour, self.topic.id, BLOCK, queue_id, offset)


def _queues(seek: Seek, hour: int, topic: Topic, wanted: int) -> list[int]:
    """The queues that have entries of this hash in this hour."""
    queue_ids: list[int] = []
    prefix = index_key(hour, topic.id, wanted, 0, 0)[:16]
    below = seek(index_key(hour, topic.id, wanted, MOST_QUEUES, 0))
    while below is not None and below[0][:16] == prefix:
        queue_id = split_index_key(below[0])[3]
        queue_ids.append(queue_id)
        below = seek(index_key(hour, topic.id, wanted, queue_id, 0))
    return queue_ids


def _has_blocks(seek: Seek, hour: int, topic: Topic) -> bool:
    if topic.compacted:  # none, and RocksDB would look at all entries that were deleted
        return False
    last = seek(index_key(hour, topic.id, BLOCK, MOST_QUEUES, 0))
    return last is not None and last[0][:16] == index_key(hour, topic.id, BLOCK, 0, 0)[:16]


def _offsets(seek: Seek, search: _Search, queue_id: int, lowest: int, beyond: int) -> list[int]:
    """Some offsets in [lowest, beyond) that the index has, newest first."""
    offsets: list[int] = []
    hour, topic_id, wanted = search.hour, search.topic.id, search.wanted
    prefix = index_key(hour, topic_id, wanted, queue_id, 0)[:18]
    while len(offsets) < _PAGE:
        below = seek(index_key(hour, topic_id, wanted, queue_id, beyond))
        if below is None or below[0][:18] != prefix:
            break
        beyond = split_index_key(below[0])[4]
        if beyond < lowest:
            break
        offsets.append(beyond)
    return offsets


def _hits(store: Store, begin: bytes, end: bytes, wanted: int) -> tuple[list[tuple[int, int]], bytes]:
    """Queues and offsets of what some blocks have of a hash, from the last one on; where they begin.

    A new cursor sorts what the index has in memory: where single entries are stored, too, that takes up to
    20 ms, ten times as long as to look through so many blocks. So it goes on for as long again.
    """
    hits: list[tuple[int, int]] = []
    first, size = begin, 0
    began = until = perf_counter()
    for looked, (key, block) in enumerate(store.scan_back(INDEX, begin, end), 1):
        if looked == 1:
            now = perf_counter()
            until = now + (now - began)
        size += len(block)
        places = places_in(block, wanted)
        if places:
            *_, queue_id, offset = split_index_key(key)
            hits += [(queue_id, offset + place) for place in reversed(places)]
        enough = looked >= _BLOCKS or size >= _BLOCK_BYTES
        if len(hits) >= _PAGE or (enough and perf_counter() >= until):
            first = key
            break
    return hits, first
