"""Removes the data of deleted topics and groups, and index entries of messages that are gone.

Works on the store alone, in small steps: each step yields its cost, about one per look-up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial

from brokers.embedded.catalog.catalog import Catalog, Topic
from brokers.embedded.storage.damaged_records import decode_first
from brokers.embedded.storage.keys import (
    COMPACTED,
    FLOORS,
    HOUR_MS,
    INDEX,
    INFLIGHT,
    LITE,
    MESSAGES,
    PROGRESS,
    REDRIVEN,
    REMOVED,
    REMOVED_TOPIC,
    SIZES,
    floor_key,
    index_key,
    inflight_key,
    lite_prefix_of_group,
    lite_prefixes_of_topic,
    message_key,
    progress_key,
    removed_key,
    split_removed_key,
)
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.errors import BrokerUnavailable

_LOOK_UP = 4
"""What a look-up by a fresh iterator costs, next to one record of a running one."""
_AT_ONCE = 128
_split_hour_and_topic = struct.Struct(">II").unpack
"""The first bytes of a key of the index."""
_HOUR_AND_TOPIC = 8
_BEYOND = b"\xff" * 24
"""Behind a prefix: higher than every key that begins with it."""


class GarbageCollection:
    """Removes what nobody can reach any more. Adds to the store's batch; the caller commits."""

    def __init__(self, store: Store, catalogue: Catalog, clock: Clock) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock
        self._swept_hour = -1

    def load(self) -> None:
        self._swept_hour = -1

    def work(self) -> Iterator[int]:
        """One round: everything of deleted topics and groups, and once an hour the index."""
        gone = [split_removed_key(key) for key, _ in self._store.scan(REMOVED, b"")]
        yield 1
        for kind, former_id in gone:
            if kind == REMOVED_TOPIC:
                yield from self._remove_topic(former_id)
            else:
                yield from self._remove_group(former_id)
        hour = self._clock.now_ms() // HOUR_MS
        if gone or hour != self._swept_hour:
            yield from self._sweep_index()
            self._swept_hour = hour
        for kind, former_id in gone:
            self._store.delete(REMOVED, removed_key(kind, former_id))
            if kind == REMOVED_TOPIC:
                begin = message_key(former_id, 0, 0)[:4]
                self._store.after_commit(partial(self._store.reclaim, MESSAGES, begin, begin + _BEYOND))
            yield 1

    def _remove_topic(self, topic_id: int) -> Iterator[int]:
        for space, prefix in (
            (MESSAGES, message_key(topic_id, 0, 0)[:4]),
            (FLOORS, floor_key(topic_id, 0)[:4]),
            (SIZES, message_key(topic_id, 0, 0)[:4]),
            (REDRIVEN, message_key(topic_id, 0, 0)[:4]),
            (COMPACTED, message_key(topic_id, 0, 0)[:4]),
        ):
            yield self._remove(space, prefix)
        for prefix in lite_prefixes_of_topic(topic_id):
            yield self._remove(LITE, prefix)
        for group in list(self._catalogue.groups()):
            yield self._remove(LITE, lite_prefix_of_group(group.id, topic_id))
            yield self._remove(INFLIGHT, inflight_key(group.id, topic_id, 0, 0)[:8])
            yield self._remove(PROGRESS, progress_key(group.id, topic_id, 0)[:8])

    def _remove_group(self, group_id: int) -> Iterator[int]:
        yield self._remove(LITE, lite_prefix_of_group(group_id))
        yield self._remove(INFLIGHT, inflight_key(group_id, 0, 0, 0)[:4])
        yield self._remove(PROGRESS, progress_key(group_id, 0, 0)[:4])

    def _remove(self, space: str, prefix: bytes) -> int:
        """Remove the keys with this prefix, if there are any: every range delete is a burden to readers."""
        beyond = prefix + _BEYOND
        if self._store.first(space, prefix, beyond) is not None:
            self._store.delete_range(space, prefix, beyond)
        return _LOOK_UP

    def _sweep_index(self) -> Iterator[int]:
        """Remove, hour by hour and topic by topic, the entries whose messages are all gone."""
        first_kept: dict[int, int] = {}
        for topic in list(self._catalogue.topics()):
            first_kept[topic.id] = self._first_kept_hour(topic)
            yield len(topic.queues)
        now_hour = self._clock.now_ms() // HOUR_MS
        oldest = min(first_kept.values(), default=now_hour)
        # What is older than every topic's first message goes at once.
        start = index_key(min(oldest, now_hour), 0, 0, 0, 0)
        if self._store.first(INDEX, b"", start) is not None:
            self._store.delete_range(INDEX, b"", start)
        yield _LOOK_UP
        at = start
        # By one cursor for many: every new one sorts what the index has in memory.
        while prefixes := self._store.runs(INDEX, at, _HOUR_AND_TOPIC, _AT_ONCE):
            for prefix in prefixes:
                at = prefix + _BEYOND
                hour, topic_id = _split_hour_and_topic(prefix)
                kept_from = first_kept.get(topic_id)
                if kept_from is None and self._catalogue.topic_by_id(topic_id) is not None:
                    kept_from = 0  # made while this round was under way
                if kept_from is None or hour < kept_from:
                    self._store.delete_range(INDEX, prefix, at)
            yield _AT_ONCE * _LOOK_UP

    def _first_kept_hour(self, topic: Topic) -> int:
        """The hour of the topic's oldest message; of now when it has none."""
        hour = self._clock.now_ms() // HOUR_MS
        for queue in topic.queues:
            try:
                head = (
                    self._store.first(
                        MESSAGES,
                        message_key(topic.id, queue.queue_id, queue.minimum),
                        message_key(topic.id, queue.queue_id, queue.maximum),
                    )
                    if queue.minimum < queue.maximum
                    else None
                )
            except BrokerUnavailable:
                return 0  # damaged, and its age unknown
            if head is not None:
                decoded = decode_first(head[1])
                if decoded is None:
                    return 0
                hour = min(hour, decoded.store_ms // HOUR_MS)
        return hour
