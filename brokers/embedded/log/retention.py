"""Removes old messages by age and by bytes per topic, and what was deleted; in small steps.

A round over everything starts every `retention_interval_ms` and is divided into ticks of bounded
work. A queue's new floor and the removal of messages below it are one batch. Messages are kept
at least as long as their topic says, and are removed within about one interval after that. By bytes, whole
segments are removed, the oldest of all queues first, until the topic is within its limit. Compacted topics
keep the newest message of each key instead, whatever its age and their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heapreplace

from brokers.embedded.catalog.catalog import Catalog, QueueState, Topic
from brokers.embedded.log.age_marks import AgeMarks
from brokers.embedded.log.compaction import Compaction
from brokers.embedded.log.garbage_collection import GarbageCollection
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.log.queue_sizes import QueueSize, forget_marks, segment_bytes
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import decode_first
from brokers.embedded.storage.keys import FLOORS, MESSAGES, floor_key, message_key
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.errors import BrokerUnavailable

_log = logging.getLogger(__name__)
_WORK_PER_TICK = 1024
_WRITTEN_FIRST = _WORK_PER_TICK
"""Yielded where the next step must see what was added: the tick ends, and the next waits for the write."""
_LONGEST_TICK_S = 0.0005
_REST_MS = 1
_FEW = 32
"""So many messages are deleted one by one: cheaper for readers than a range."""
_RECLAIM_BYTES = 64 * 1024 * 1024


class Retention:
    """Removes what is too old or too much. Adds to the store's batch; the caller commits."""

    def __init__(
        self, store: Store, log: MessageLog, catalogue: Catalog, clock: Clock, settings: EmbeddedSettings
    ) -> None:
        self.on_floor: Callable[[Topic, QueueState], None] | None = None
        """Called when messages below `queue.minimum` were removed."""
        self._store = store
        self._log = log
        self._catalogue = catalogue
        self._clock = clock
        self._settings = settings
        self._ages = AgeMarks(store)
        self._removal = GarbageCollection(store, catalogue, clock)
        self._compaction = Compaction(store, log, catalogue, settings, written=_WRITTEN_FIRST)
        self._sizes: dict[tuple[int, int], QueueSize] = {}
        self._freed: dict[tuple[int, int], int] = {}
        self._round: Iterator[int] | None = None
        self._turn = -1
        self._next_ms = 0

    def __repr__(self) -> str:
        return f"<Retention {'working' if self._round else 'resting'} next {self._next_ms}>"

    def load(self) -> None:
        """Start a round at the next tick, discarding the state in memory."""
        self._removal.load()
        self._ages.load()
        self._sizes.clear()
        self._freed.clear()
        self._round = None
        self._next_ms = self._clock.now_ms()

    def deadline(self) -> int | None:
        """Wall time in ms of the next tick; the past: now, there is more. A clock set back delays nothing."""
        return min(self._next_ms, self._clock.now_ms() + self._settings.retention_interval_ms)

    def tick(self, now_ms: int) -> None:
        """Do a bounded piece of the round."""
        if self._turn == self._store.turn and self._store.filling:
            return  # what the last piece added is not written yet
        if self._round is None:
            if now_ms < self._next_ms <= now_ms + self._settings.retention_interval_ms:
                return
            self._next_ms = now_ms
            self._round = self._work(now_ms)
        elif now_ms < self._next_ms <= now_ms + _REST_MS:
            return
        done = 0
        until = self._clock.monotonic() + _LONGEST_TICK_S
        for cost in self._round:
            done += cost
            late = self._clock.monotonic() >= until
            if done >= _WORK_PER_TICK or late:
                self._turn = self._store.turn
                # Sends go on between two pieces: they get most of the time.
                self._next_ms = now_ms + (_REST_MS if late else 0)
                return
        self._round = None
        self._next_ms = now_ms + self._settings.retention_interval_ms

    def bytes_of(self, topic: Topic) -> int | None:
        """The bytes of a topic as of the last round; None for a topic without a size limit."""
        sizes = [self._sizes.get((topic.id, queue.queue_id)) for queue in topic.queues]
        counted = [size.total for size in sizes if size is not None]
        return sum(counted) if counted else None

    # -- one round ----------------------------------------------------------------------------

    def _work(self, now_ms: int) -> Iterator[int]:
        for topic in list(self._catalogue.topics()):
            if self._catalogue.topic_by_id(topic.id) is not topic:
                continue  # deleted while this round was under way
            try:
                if topic.compacted:
                    for queue in list(topic.queues):
                        yield from self._compaction.work(topic, queue, now_ms)
                    continue
                for queue in topic.queues:
                    yield self._remove_by_age(topic, queue, now_ms)
                limit = self._bytes_limit(topic)
                if limit is not None:
                    yield from self._remove_by_bytes(topic, limit)
            except BrokerUnavailable as error:  # damaged; the others must not grow because of it
                _log.warning("old messages of topic %s stay for now: %s", topic.name, error)
        live = {topic.id for topic in self._catalogue.topics()}
        for per_queue in (self._sizes, self._freed):
            for place in [place for place in per_queue if place[0] not in live]:
                del per_queue[place]
        self._ages.forget(live)
        yield len(live) // 16 + 1
        yield from self._removal.work()

    def _bytes_limit(self, topic: Topic) -> int | None:
        own = topic.config.retention_bytes
        limit = self._settings.retention_bytes if own is None else own
        return limit if limit is not None and limit > 0 else None

    def _remove_by_age(self, topic: Topic, queue: QueueState, now_ms: int) -> int:
        own = topic.config.retention_ms
        kept_ms = self._settings.retention_ms if own is None else own
        if kept_ms <= 0 or queue.minimum >= queue.visible:
            return 1
        by_marks = self._ages.floor(topic, queue, now_ms, kept_ms)
        if by_marks is not None and by_marks > queue.minimum:
            self._raise_floor(topic, queue, by_marks)
            return 64
        oldest_kept_ms = now_ms - kept_ms
        head = self._first_from(topic, queue, queue.minimum)
        if head is not None and head[1] >= oldest_kept_ms:
            return 2
        # Store times of a queue never go back, so the first one to keep is found by halving.
        low, high = queue.minimum, queue.visible
        while low < high:
            middle = (low + high) // 2
            first = self._first_from(topic, queue, middle)
            if first is None:
                high = middle
            elif first[1] < oldest_kept_ms:
                low = first[0] + 1
            else:
                high = middle
        self._raise_floor(topic, queue, low)
        return 64

    def _remove_by_bytes(self, topic: Topic, limit: int) -> Iterator[int]:
        queues = list(topic.queues)
        segment = segment_bytes(limit, len(queues))
        sizes = []
        for queue in queues:
            size = self._sizes.get((topic.id, queue.queue_id))
            if size is None:
                size = self._sizes[topic.id, queue.queue_id] = QueueSize(self._store, self._log, topic, queue)
            sizes.append(size)
            yield from size.measure(segment)
        if sum(size.total for size in sizes) <= limit:
            return
        yield _WRITTEN_FIRST
        # The queue whose first message is the oldest, and of several the fullest.
        oldest: list[tuple[int, int, int]] = []
        for index, queue in enumerate(queues):
            head = self._first_from(topic, queue, queue.minimum)
            if head is not None:
                oldest.append((head[1], -sizes[index].total, index))
        heapify(oldest)
        while oldest and sum(size.total for size in sizes) > limit:
            index = oldest[0][2]
            queue = queues[index]
            mark = sizes[index].first_mark()
            if mark is None or mark > queue.visible:
                heappop(oldest)
                continue
            self._raise_floor(topic, queue, mark)
            head = self._first_from(topic, queue, mark)
            if head is None:
                heappop(oldest)
            else:
                heapreplace(oldest, (head[1], -sizes[index].total, index))
            yield 8

    def _first_from(self, topic: Topic, queue: QueueState, offset: int) -> tuple[int, int] | None:
        """Offset and store time of the first sound message from `offset` on."""
        while offset < queue.visible:
            entry = self._store.first(
                MESSAGES,
                message_key(topic.id, queue.queue_id, offset),
                message_key(topic.id, queue.queue_id, queue.visible),
            )
            if entry is None:
                return None
            offset = int.from_bytes(entry[0][6:], "big")
            sound = decode_first(entry[1])
            if sound is not None:
                return offset, sound.store_ms
            offset += 1
        return None

    def _raise_floor(self, topic: Topic, queue: QueueState, floor: int) -> None:
        """Remove the messages of a queue below `floor`, and record the floor in the same batch."""
        old, queue_id = queue.minimum, queue.queue_id
        if floor <= old:
            return
        place = topic.id, queue_id
        store = self._store
        self._freed[place] = self._freed.get(place, 0) + self._estimated_bytes(topic, queue, floor)
        store.put(FLOORS, floor_key(*place), floor.to_bytes(8, "big"))
        if floor - old <= _FEW:
            for offset in range(old, floor):
                store.delete(MESSAGES, message_key(*place, offset))
        else:
            store.delete_range(MESSAGES, message_key(*place, old), message_key(*place, floor))
        queue.minimum = floor
        size = self._sizes.get(place)
        if size is not None:
            size.floor_rose(old, floor)
        else:
            forget_marks(store, *place, old, floor)
        if self._freed[place] >= _RECLAIM_BYTES:
            del self._freed[place]
            store.after_commit(
                partial(store.reclaim, MESSAGES, message_key(*place, 0), message_key(*place, floor))
            )
        if self.on_floor is not None:
            self.on_floor(topic, queue)

    def _estimated_bytes(self, topic: Topic, queue: QueueState, floor: int) -> int:
        """About how much goes, from one message in the middle: it only decides when to reclaim."""
        sample = self._log.get(topic, queue.queue_id, (queue.minimum + floor) // 2)
        return (len(sample) if sample is not None else 0) * (floor - queue.minimum)
