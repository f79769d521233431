"""The age of messages whose store time is wrong because the wall clock was ahead when they were stored.

Store times within a queue never decrease, so one message stored in the year 2040 gives all following
ones that time, and retention would keep them until then. Such a queue gets marks instead: at this
(believable) time everything below this offset was stored. A queue has a few marks, in the store, so that
messages stay at most an eighth of their retention time too long.
"""

from __future__ import annotations

import struct

from brokers.embedded.catalog.catalog import QueueState, Topic
from brokers.embedded.storage.keys import META, floor_key
from brokers.embedded.storage.store import Store

_AHEAD_MS = 60_000
"""Store times that are less ahead may be due to the order of looking, or to a clock put right."""
_MARKS = 8
_MARK = struct.Struct(">QQ")
_PREFIX = b"age marks "


class AgeMarks:
    """Marks of the queues that need some. Adds to the store's batch; the caller commits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._marks: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def load(self) -> None:
        self._marks.clear()
        for key, value in self._store.scan(META, _PREFIX, _PREFIX + b"\xff" * 8):
            place = struct.unpack(">IH", key[len(_PREFIX) :])
            self._marks[place] = [(at, ms) for at, ms in _MARK.iter_unpack(value)]

    def floor(self, topic: Topic, queue: QueueState, now_ms: int, kept_ms: int) -> int | None:
        """Below this offset everything is older than `kept_ms`; None where store times tell that."""
        place = topic.id, queue.queue_id
        if queue.last_store_ms <= now_ms + _AHEAD_MS:
            if self._marks.pop(place, None) is not None:
                self._store.delete(META, _PREFIX + floor_key(*place))
            return None
        marks = self._marks.get(place, [])
        # A time ahead of now was no time either.
        current = [(at, ms) for at, ms in marks if ms <= now_ms]
        floor = max((at for at, ms in current if ms <= now_ms - kept_ms), default=queue.minimum)
        current = [(at, ms) for at, ms in current if at > floor]
        last_at, last_ms = current[-1] if current else (floor, 0)
        if queue.visible > last_at and now_ms - last_ms >= kept_ms // _MARKS:
            current.append((queue.visible, now_ms))
        if current != marks:
            self._marks[place] = current
            self._store.put(
                META, _PREFIX + floor_key(*place), b"".join(_MARK.pack(*mark) for mark in current)
            )
        return max(floor, queue.minimum)

    def forget(self, live: set[int]) -> None:
        """Topics that are gone need none."""
        for place in [place for place in self._marks if place[0] not in live]:
            del self._marks[place]
            self._store.delete(META, _PREFIX + floor_key(*place))
