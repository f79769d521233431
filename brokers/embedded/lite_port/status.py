"""The status of a group that takes lite topics, for operators: what it holds, and its positions.

Looking changes nothing, not even what memory keeps. It is bounded: first the most recently used entries,
which are in memory, then a limited part of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from heapq import nsmallest
from itertools import islice

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.engine import Engine
from brokers.embedded.groups.entries import Entry
from brokers.embedded.lite.cursor import Cursor
from brokers.embedded.lite.engine import waiting_id
from brokers.embedded.lite.keys import PLACE_DUE, beyond, lite_id_in, split_due_key
from brokers.embedded.storage.keys import LITE, lite_prefix_of_group
from popgate.model import GroupStatus, StartFrom
from popgate.wire.messages.records import Record

_MOST_LOOKED = 16_384
_MOST_LISTED = 4_096
_AT_ONCE = 256
"""Keys that are looked at before others get a turn."""
Scan = Callable[[bytes], Iterator[tuple[bytes, bytes]]]
HeldHere = tuple[Cursor, int, Entry]
"""A place, the offset in its lite topic, and the delivery."""


async def held_of(engine: Engine, topic: Topic, group: Group, limit: int) -> list[HeldHere]:
    """What the group holds of lite topics, longest held first."""
    now_ms = engine.steady.now_ms()
    held: list[HeldHere] = []
    seen: set[int] = set()
    for place in engine.lites.kept_places(topic, group):
        seen.add(place.lite.id)
        held += _held_in(place, now_ms)
    # Whatever is held has a key there, under the time when it comes back.
    async for key, _ in _slices(engine, lambda begin: engine.lites.due_from(begin), b""):
        _, kind, topic_id, lite_id, group_id = split_due_key(key)
        if kind != PLACE_DUE or (topic_id, group_id) != (topic.id, group.id) or lite_id in seen:
            continue
        seen.add(lite_id)
        there = engine.lites.glance(group, topic, lite_id)
        if there is not None:
            held += _held_in(there, now_ms)
            if len(held) > _MOST_LISTED:
                held = nsmallest(limit, held, key=_age)
    return nsmallest(limit, held, key=_age)


async def standing_of(engine: Engine, topic: Topic, group: Group) -> GroupStatus:
    """The group's status in all lite topics that it received from, or subscribes to."""
    count = _Count(engine, topic, group)
    for place in engine.lites.kept_places(topic, group):
        count.add(place)
    prefix = lite_prefix_of_group(group.id, topic.id)

    def places(begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        return engine.store.scan(LITE, begin, beyond(prefix))

    async for key, _ in _slices(engine, places, prefix):
        lite_id = lite_id_in(key)
        there = engine.lites.glance(group, topic, lite_id) if lite_id not in count.seen else None
        if there is not None:
            count.add(there)
    count.add_subscribed()
    return count.standing()


class _Count:
    """Adds up places."""

    def __init__(self, engine: Engine, topic: Topic, group: Group) -> None:
        self.seen: set[int] = set()
        self._engine = engine
        self._topic = topic
        self._group = group
        self._now_ms = engine.steady.now_ms()
        self._unread = self._free = self._in_flight = self._behind = self._receivers = 0

    def add(self, place: Cursor) -> None:
        self.seen.add(place.lite.id)
        # The place may know an older one, which left memory meanwhile.
        lite = self._engine.lites.topics.glance(self._topic, place.lite.name)
        if lite is None or lite.id != place.lite.id:
            return
        new = max(lite.visible - max(place.frontier, lite.minimum), 0)
        in_flight = sum(entry.due_ms > self._now_ms for entry in place.entries.values())
        back = len(place.entries) - in_flight
        self._in_flight += in_flight
        if in_flight:
            self._behind += new + back
        else:
            self._unread += new
            self._free += back

    def add_subscribed(self) -> None:
        """Lite topics that the group was not yet given anything of; and who waits."""
        engine, topic, group = self._engine, self._topic, self._group
        looks = _MOST_LOOKED
        for subscriber in engine.lites.subscriptions.of_group(group, topic):
            self._receivers += engine.waiting.count(waiting_id(topic), (group.id, subscriber.client_key))
            for name in islice(subscriber.names, max(looks, 0)):
                looks -= 1
                lite = engine.lites.topics.glance(topic, name)
                if lite is not None and lite.id not in self.seen:
                    self.seen.add(lite.id)
                    if group.config.start_from is not StartFrom.LAST:
                        self._unread += lite.visible - lite.minimum

    def standing(self) -> GroupStatus:
        return GroupStatus(
            group=self._group.name,
            topic=self._topic.name,
            lag=self._unread + self._free + self._in_flight + self._behind,
            unread=self._unread,
            free=self._free,
            in_flight=self._in_flight,
            behind=self._behind,
            refused=0,
            receivers=self._receivers,
            full=False,
            redelivered=0,
            dead_lettered=0,
        )


def record_of(engine: Engine, place: Cursor, offset: int) -> Record | None:
    """The message; None when it is gone."""
    [read] = engine.lites.topics.read(place.lite, [offset])
    return read[1] if read is not None else None


def waiting_behind(engine: Engine, place: Cursor, offset: int) -> int:
    """What cannot be delivered of the lite topic before this message is finished."""
    lite = engine.lites.topics.glance(place.lite.topic, place.lite.name) or place.lite
    new = max(lite.visible - max(place.frontier, lite.minimum), 0)
    return sum(entry_offset > offset for entry_offset in place.entries) + new


def _held_in(place: Cursor, now_ms: int) -> list[HeldHere]:
    return [
        (place, offset, entry)
        for offset, entry in place.entries.items()
        if entry.held and entry.due_ms > now_ms
    ]


def _age(held: HeldHere) -> tuple[int, int, int]:
    place, offset, entry = held
    return entry.pop_ms, place.lite.id, offset


async def _slices(engine: Engine, scan: Scan, begin: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
    """What is there from `begin` on, as far as is looked."""
    for _ in range(_MOST_LOOKED // _AT_ONCE):
        some = list(islice(scan(begin), _AT_ONCE))
        for item in some:
            yield item
        if len(some) < _AT_ONCE:
            return
        begin = some[-1][0] + b"\0"
        await asyncio.sleep(0)
        engine.check_open()
