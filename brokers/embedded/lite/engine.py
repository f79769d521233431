"""Lite topics, the positions of groups in them, whom to wake, and what happens by time.

Two things happen by time: a held message becomes available again, or a dead letter; and a lite topic is
checked for being idle too long, and for having lost its first messages.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator

from brokers.embedded.catalog.catalog import Catalog, Group, Topic
from brokers.embedded.groups.dead_letters import DeadLetters
from brokers.embedded.groups.wait_queue import WaitQueue
from brokers.embedded.lite.bounded_cache import BoundedCache
from brokers.embedded.lite.catalog import LiteCatalog, LiteTopic
from brokers.embedded.lite.cursor import Cursor, CursorParts
from brokers.embedded.lite.keys import (
    PLACE_PREFIX,
    PLACES,
    TOPIC_DUE,
    beyond,
    decode_place,
    name_in,
    pair_in,
    place_key,
    split_due_key,
    topic_key,
)
from brokers.embedded.lite.subscriptions import Subscriptions
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.runtime.counters import Counters
from brokers.embedded.runtime.steady_clock import MonotonicWallClock
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import LITE, LITE_DUE
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.lite import LITE_BIND_TOPIC, LITE_EXPIRATION
from popgate.model import MessageType, StartFrom

_log = logging.getLogger(__name__)
_TRIM_AT_ONCE = 256
_SWEEP_AT_ONCE = 256
_ANY_BYTES = 1 << 30
_BEYOND_DUE = b"\xff" * 25


class LiteEngine:
    """Everything about lite topics in memory. Adds to the store's batch; the caller commits."""

    def __init__(
        self,
        store: Store,
        log: MessageLog,
        catalogue: Catalog,
        dead_letters: DeadLetters,
        subscriptions: Subscriptions,
        waiting: WaitQueue,
        clock: Clock,
        steady: MonotonicWallClock,
        settings: EmbeddedSettings,
        tallies: Counters,
    ) -> None:
        self.subscriptions = subscriptions
        self._store = store
        self._catalogue = catalogue
        self._waiting = waiting
        self._clock = clock
        self._steady = steady
        self._settings = settings
        self._due = DueQueue(store, LITE_DUE)
        self.topics = LiteCatalog(store, log, self._due, settings)
        self.topics.on_arrival = self._arrived
        self._parts = CursorParts(store, self.topics, self._due, dead_letters, tallies)
        self._places: BoundedCache[tuple[int, int, int], Cursor] = BoundedCache(
            settings.max_lite_cached, lambda: store.turn
        )
        self._overdue: dict[int, bytes] = {}
        """Topics whose expiration became shorter, and up to which lite topic that was carried out."""
        self._bound: dict[str, list[Group]] = {}
        """By topic, as of a turn of the store."""
        self._bound_turn = -1
        self._former: dict[int, set[int]] | None = None
        """By topic id, the groups that had places when the first lite topic was deleted, or have since."""

    def __repr__(self) -> str:
        return f"<LiteEngine {self.topics!r} places {len(self._places)} {self.subscriptions!r}>"

    def load(self) -> None:
        """Load from the store, replacing the contents of memory."""
        self._due.load()
        for topic in self._catalogue.topics():
            self.settings_changed(topic)
        self.subscriptions.found_again(self._catalogue)

    def now_ms(self) -> int:
        """When a lite topic is used: it is idle from then on, so the later time of two counts.

        By a wall clock that was set back it would be idle already; a steady time that is behind the
        wall clock would make it so at the next start.
        """
        return max(self._clock.now_ms(), self._steady.now_ms())

    # -- finding ------------------------------------------------------------------------------

    def bound(self, topic: str, group: str) -> tuple[Topic, Group] | None:
        """The two, when the group takes lite topics of this topic."""
        known_group = self._catalogue.find_group(group)
        if known_group is None or known_group.config.attributes.get(LITE_BIND_TOPIC) != topic:
            return None
        there = self._catalogue.find_topic(topic)
        return (there, known_group) if there is not None else None

    def place(self, group: Group, lite: LiteTopic) -> Cursor:
        """The group's position in a lite topic; a new one starts where the group's settings say."""
        cursor = self.find_place(group, lite.topic, lite.id)
        if cursor is None:
            last = group.config.start_from is StartFrom.LAST
            cursor = Cursor(self._parts, group, lite, lite.visible if last else lite.minimum)
            self._places.add((group.id, lite.topic.id, lite.id), cursor)
            if self._former is not None:
                self._former.setdefault(lite.topic.id, set()).add(group.id)
        cursor.lite = lite
        return cursor

    def find_place(self, group: Group, topic: Topic, lite_id: int) -> Cursor | None:
        key = (group.id, topic.id, lite_id)
        cursor = self._places.get(key)
        if cursor is None:
            cursor = self._read(group, topic, lite_id, self.topics.find)
            if cursor is not None:
                self._places.add(key, cursor)
                now_ms = self._steady.now_ms()
                if cursor.due_ms > now_ms and cursor.next_due_ms(now_ms) != cursor.due_ms:
                    # The wall clock was set back: what is held is free earlier than the schedule has it.
                    cursor.settle(now_ms)
        return cursor

    def glance(self, group: Group, topic: Topic, lite_id: int) -> Cursor | None:
        """The same for reading only: it may be a copy that is not kept."""
        cursor = self._places.peek((group.id, topic.id, lite_id))
        return cursor or self._read(group, topic, lite_id, self.topics.glance)

    def kept_places(self, topic: Topic, group: Group) -> list[Cursor]:
        """Of the group's places those in memory, to look at."""
        begin = (group.id, topic.id)
        return [place for key, place in self._places.items() if key[:2] == begin]

    def due_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What has to happen, by its time: keys of `brokers.embedded.lite.keys.due_key`."""
        return self._due.within(begin, _BEYOND_DUE)

    def _read(
        self, group: Group, topic: Topic, lite_id: int, find: Callable[[Topic, str], LiteTopic | None]
    ) -> Cursor | None:
        value = self._store.get(LITE, place_key(group.id, topic.id, lite_id))
        if value is None:
            return None
        try:
            name, frontier, last_pop_ms, due_ms, attempt_id, holder, entries = decode_place(value)
        except (ValueError, struct.error) as error:
            _log.error("the place of group %s in a lite topic of %s: %s", group.name, topic.name, error)
            return None
        lite = find(topic, name)
        if lite is None or lite.id != lite_id:
            return None
        cursor = Cursor(self._parts, group, lite, frontier)
        cursor.last_pop_ms, cursor.due_ms = last_pop_ms, due_ms
        cursor.attempt_id, cursor.holder = attempt_id, holder
        cursor.adopt(entries, self._steady.now_ms())
        return cursor

    # -- waking -------------------------------------------------------------------------------

    def settle(self, place: Cursor, now_ms: int) -> None:
        """At the end of a step: keep what the place is now, and wake who may take from it."""
        place.settle(now_ms)
        if place.has_work(now_ms):
            self.wake(place.lite, place.group)

    def wake(self, lite: LiteTopic, group: Group | None = None) -> None:
        """Let those who subscribe to a lite topic look at it."""
        for subscriber in self.subscriptions.of(lite.topic, lite.name, group):
            subscriber.ready[lite.name] = None
            key = (subscriber.group.id, subscriber.client_key)
            self._waiting.wake(waiting_id(lite.topic), key, -1, 1)

    def _arrived(self, lite: LiteTopic) -> None:
        try:
            self.wake(lite)
        except Exception:
            _log.exception("looking at new messages of %r failed", lite)
            self._waiting.wake_all(waiting_id(lite.topic))

    # -- what comes and goes --------------------------------------------------------------------

    def delete(self, lite: LiteTopic) -> None:
        """Remove a lite topic and every group's position in it, and notify its subscribers."""
        topic = lite.topic
        for group in self._groups_with_places(topic):
            place = self.find_place(group, topic, lite.id)
            if place is not None:
                place.delete()
                self._places.drop((group.id, topic.id, lite.id))
        self.topics.delete(lite)
        self._store.after_commit(lambda: self.subscriptions.drop_lite(topic, lite.name))

    def settings_changed(self, topic: Topic) -> None:
        """A shorter expiration counts for the lite topics that are there, too."""
        self._waiting.wake_all(waiting_id(topic))
        config = topic.config
        if LITE_EXPIRATION not in config.attributes and MessageType.LITE not in config.message_types:
            return
        applied_ms = self.topics.applied_ms(topic)
        if applied_ms is not None and applied_ms != self.topics.expiration_ms(topic):
            self._overdue[topic.id] = topic_key(topic.id) + b"\0"

    def drop_topic(self, topic: Topic) -> None:
        self.topics.drop(topic)
        self._overdue.pop(topic.id, None)
        if self._former is not None:
            self._former.pop(topic.id, None)
        self._places.drop_if(lambda key: key[1] == topic.id)
        self.subscriptions.drop_if(lambda subscriber: subscriber.topic is topic)
        self._waiting.wake_all(waiting_id(topic))

    def group_changed(self, group: Group) -> None:
        """Whoever waits for the group looks what its settings say now."""
        self._bound_turn = -1
        topic = self._catalogue.find_topic(group.config.attributes.get(LITE_BIND_TOPIC, ""))
        if topic is not None:
            self._waiting.wake_all(waiting_id(topic))

    def drop_group(self, group: Group) -> None:
        self._places.drop_if(lambda key: key[0] == group.id)
        self.subscriptions.drop_if(lambda subscriber: subscriber.group is group)
        self.group_changed(group)

    # -- what happens by itself -----------------------------------------------------------------

    def deadline(self) -> int | None:
        """Wall time in ms of the next tick. What is held goes by the steady time."""
        wall_ms = self._clock.now_ms()
        if self._overdue:
            return wall_ms
        due_ms, sweep_s = self._due.deadline(), self.subscriptions.sweep_due_s()
        times = [] if due_ms is None else [wall_ms + due_ms - self._steady.now_ms()]
        if sweep_s is not None:
            times.append(wall_ms + int((sweep_s - self._clock.monotonic()) * 1000) + 1)
        return min(times, default=None)

    def tick(self, _wall_ms: int) -> None:
        now_ms = self._steady.now_ms()
        sweep_s = self.subscriptions.sweep_due_s()
        if sweep_s is not None and sweep_s <= self._clock.monotonic():
            self.subscriptions.sweep()
        for topic_id in list(self._overdue)[:1]:
            self._sweep(topic_id, now_ms)
        self.fall_due(now_ms)

    def fall_due(self, now_ms: int) -> None:
        """What is due happens, a bounded number."""
        due_ms = self._due.deadline()
        if due_ms is None or due_ms > now_ms:
            return
        for key, name in self._due.take(now_ms, self._settings.max_due, _ANY_BYTES):
            due_ms, kind, topic_id, lite_id, group_id = split_due_key(key)
            topic = self._catalogue.topic_by_id(topic_id)
            if topic is None:
                continue
            if kind == TOPIC_DUE:
                lite = self.topics.find(topic, name.decode())
                if lite is not None and lite.id == lite_id and lite.due_ms == due_ms:
                    lite.due_ms = 0
                    self._look_at(lite, now_ms)
                continue
            group = self._catalogue.group_by_id(group_id)
            place = self.find_place(group, topic, lite_id) if group is not None else None
            if place is not None and place.due_ms == due_ms:
                place.due_ms = 0
                place.fall_due(now_ms)
                self.settle(place, now_ms)

    def _look_at(self, lite: LiteTopic, now_ms: int) -> None:
        """It may have been idle for too long, or its first messages may be gone."""
        idle_ms = now_ms - lite.last_ms
        expiration_ms = self.topics.expiration_ms(lite.topic)
        if lite.visible == lite.maximum and (
            0 <= expiration_ms <= idle_ms or (not lite.maximum and idle_ms >= self.topics.kept_ms(lite.topic))
        ):
            self.delete(lite)
            return
        trimmed = self.topics.trim(lite, _TRIM_AT_ONCE)
        more = trimmed == _TRIM_AT_ONCE
        self.topics.look_at(lite, now_ms if more else self.topics.next_look_ms(lite, now_ms))

    def _sweep(self, topic_id: int, now_ms: int) -> None:
        """Carry out a new expiration, a few lite topics at a time."""
        topic = self._catalogue.topic_by_id(topic_id)
        if topic is None:
            del self._overdue[topic_id]
            return
        names: list[bytes] = []
        for key, _ in self._store.scan(LITE, self._overdue[topic_id], beyond(topic_key(topic_id))):
            names.append(key)
            if len(names) >= _SWEEP_AT_ONCE:
                break
        for key in names:
            lite = self.topics.find(topic, name_in(key))
            if lite is not None:
                due_ms = max(self.topics.next_look_ms(lite, now_ms), now_ms)
                if not lite.due_ms or due_ms < lite.due_ms:
                    self.topics.look_at(lite, due_ms)
        if len(names) < _SWEEP_AT_ONCE:
            del self._overdue[topic_id]
            self.topics.applied(topic, self.topics.expiration_ms(topic))
        else:
            self._overdue[topic_id] = names[-1] + b"\0"

    def _groups_with_places(self, topic: Topic) -> Iterator[Group]:
        """Groups that may have a place in a lite topic: also those that are bound to another topic now."""
        bound = self._bound_groups(topic)
        yield from bound
        if self._former is None:
            self._former = self._read_pairs()
            for place in self._places:  # the store may not have them yet
                self._former.setdefault(place.lite.topic.id, set()).add(place.group.id)
        for group_id in list(self._former.get(topic.id, ())):
            group = self._catalogue.group_by_id(group_id)
            if group is not None and group.config.attributes.get(LITE_BIND_TOPIC) != topic.name:
                yield group

    def _read_pairs(self) -> dict[int, set[int]]:
        """Topics, and the groups that have places in their lite topics, by id, as the store has them."""
        pairs: dict[int, set[int]] = {}
        begin = PLACES
        while prefixes := self._store.runs(LITE, begin, PLACE_PREFIX, _SWEEP_AT_ONCE):
            for prefix in prefixes:
                if not prefix.startswith(PLACES):
                    return pairs
                group_id, topic_id = pair_in(prefix)
                pairs.setdefault(topic_id, set()).add(group_id)
            begin = beyond(prefixes[-1])
        return pairs

    def _bound_groups(self, topic: Topic) -> list[Group]:
        """Looked up once for all lite topics that go in the same turn: there may be many of both."""
        if self._bound_turn != self._store.turn:
            self._bound_turn = self._store.turn
            self._bound.clear()
            for group in self._catalogue.groups():
                bound_to = group.config.attributes.get(LITE_BIND_TOPIC)
                if bound_to is not None:
                    self._bound.setdefault(bound_to, []).append(group)
        return self._bound.get(topic.name, [])


def waiting_id(topic: Topic) -> int:
    """Under what those stand who wait for lite topics: an arrival in the topic is no news to them."""
    return -topic.id
