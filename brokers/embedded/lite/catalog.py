"""Lite topics by name: created by their first message, loaded from the store on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from brokers.embedded.catalog.catalog import Topic
from brokers.embedded.lite.bounded_cache import BoundedCache
from brokers.embedded.lite.keys import (
    TOPIC_DUE,
    beyond,
    due_key,
    log_key,
    name_in,
    pack_header,
    pack_spot,
    pack_topic,
    topic_key,
    unpack_header,
    unpack_spot,
    unpack_topic,
)
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import LITE
from brokers.embedded.storage.store import Store
from popgate.errors import LiteTopicQuotaExceeded
from popgate.lite import LITE_EXPIRATION
from popgate.wire.messages.records import Record

_MINUTE_MS = 60_000
_LONGEST_EXPIRATION_MIN = 30 * 24 * 60
_FEW = 32
"""So many entries of the index are deleted one by one: cheaper for readers than a range."""
_LOOK_MS = 60_000
"""A lite topic is looked at once in so long at most, and so much later than what it is looked at for."""
_LONG_MS = 24 * 3_600_000


class LiteTopic:
    """The state of one lite topic.

    `minimum`: the first offset that may still exist. `maximum`: the next to assign. `visible`:
    all below are committed and can be read. `due_ms`: the time of its next check, 0: never.
    """

    __slots__ = ("due_ms", "gone", "id", "last_ms", "maximum", "minimum", "name", "topic", "turn", "visible")

    def __init__(self, topic: Topic, name: str, lite_id: int) -> None:
        self.topic = topic
        self.name = name
        self.id = lite_id
        self.minimum = self.maximum = self.visible = 0
        self.last_ms = 0
        self.due_ms = 0
        self.turn = -1
        self.gone = False

    def __repr__(self) -> str:
        return f"<LiteTopic {self.topic.name}/{self.name} {self.minimum}..{self.visible}/{self.maximum}>"

    def busy(self, turn: int) -> bool:
        return self.turn == turn or self.visible != self.maximum


class _Header:
    """What a topic knows of its lite topics together."""

    __slots__ = ("applied_ms", "count", "next_id")

    def __init__(self, count: int, next_id: int, applied_ms: int) -> None:
        self.count = count
        self.next_id = next_id
        self.applied_ms = applied_ms
        """The expiration that all of them are due by."""


class LiteCatalog:
    """All lite topics. What changes is added to the store's batch; the caller commits."""

    def __init__(self, store: Store, log: MessageLog, due: DueQueue, settings: EmbeddedSettings) -> None:
        self.on_arrival: Callable[[LiteTopic], None] | None = None
        """Called once new messages of a lite topic can be read."""
        self._store = store
        self._log = log
        self._due = due
        self._settings = settings
        self._kept: BoundedCache[tuple[int, str], LiteTopic] = BoundedCache(
            settings.max_lite_cached, lambda: store.turn
        )
        self._headers: dict[int, _Header] = {}
        self._grown: dict[LiteTopic, int] = {}
        self._turn = -1
        self._deleted: set[tuple[int, str]] = set()
        self._deleted_turn = -1

    def __repr__(self) -> str:
        return f"<LiteCatalog kept {len(self._kept)}>"

    # -- finding and making -------------------------------------------------------------------

    def find(self, topic: Topic, name: str) -> LiteTopic | None:
        key = (topic.id, name)
        lite = self._kept.get(key)
        if lite is None:
            if self._deleted_turn == self._store.turn and key in self._deleted:
                return None  # the store does not know that yet
            value = self._store.get(LITE, topic_key(topic.id, name.encode()))
            if value is None:
                return None
            lite = self._kept.add(key, self._decoded(topic, name, value))
        return lite

    def glance(self, topic: Topic, name: str) -> LiteTopic | None:
        """The same for reading only: one that is not in memory is not loaded permanently."""
        lite = self._kept.peek((topic.id, name))
        if lite is None and not (
            self._deleted_turn == self._store.turn and (topic.id, name) in self._deleted
        ):
            value = self._store.get(LITE, topic_key(topic.id, name.encode()))
            lite = self._decoded(topic, name, value) if value is not None else None
        return lite

    def ensure(self, topic: Topic, name: str, now_ms: int) -> LiteTopic:
        """The lite topic of this name, made now if there is none. Raises LiteTopicQuotaExceeded."""
        known = self.find(topic, name)
        if known is not None:
            return known
        header = self._header(topic)
        if header.count >= self._settings.max_lite_topics:
            raise LiteTopicQuotaExceeded(topic.name, self._settings.max_lite_topics)
        lite = LiteTopic(topic, name, header.next_id)
        header.next_id += 1
        header.count += 1
        self._put_header(topic, header)
        lite.last_ms = now_ms
        self._kept.add((topic.id, name), lite)
        self.look_at(lite, self.next_look_ms(lite, now_ms))
        return lite

    def count(self, topic: Topic) -> int:
        return self._header(topic).count

    def listed(self, topic: Topic, after: str, limit: int) -> Iterator[LiteTopic]:
        """Lite topics by name, from behind `after` on; committed ones."""
        begin = topic_key(topic.id, after.encode("utf-8", "replace") + b"\0")
        names = []
        for key, _ in self._store.scan(LITE, begin, beyond(topic_key(topic.id))):
            names.append(name_in(key))
            if len(names) >= limit:
                break
        for name in names:
            lite = self.find(topic, name)
            if lite is not None:
                yield lite

    def drop(self, topic: Topic) -> None:
        """The topic was deleted: what the store has of it is removed by retention."""
        self._kept.drop_if(lambda key: key[0] == topic.id)
        self._headers.pop(topic.id, None)

    # -- messages -----------------------------------------------------------------------------

    def append(self, lite: LiteTopic, queue_id: int, offset: int, now_ms: int) -> None:
        """Record the place of its next message."""
        if self._turn != self._store.turn:
            # Each batch raises what its own messages reached: a later one may still be on its way.
            self._turn = self._store.turn
            self._grown = {}
            self._store.after_commit(partial(self._raise_visible, self._grown))
        key = log_key(lite.topic.id, lite.id, lite.maximum)
        self._store.put(LITE, key, pack_spot(queue_id, offset))
        lite.maximum += 1
        lite.last_ms = now_ms
        self._grown[lite] = lite.maximum
        if lite.due_ms:
            self.put(lite)
        else:
            self.look_at(lite, self.next_look_ms(lite, now_ms))

    def read(self, lite: LiteTopic, offsets: Sequence[int]) -> list[tuple[bytes, Record] | None]:
        """Committed records, stored and decoded; None for a removed or damaged one."""
        topic = lite.topic
        keys = [log_key(topic.id, lite.id, offset) for offset in offsets]
        return [self._read(topic, spot) for spot in self._store.get_many(LITE, keys)]

    def stored_ms(self, lite: LiteTopic, offset: int) -> int | None:
        """When a message was stored; None when it is gone."""
        [read] = self.read(lite, [offset])
        return read[1].store_ms if read is not None else None

    # -- what happens at its time -----------------------------------------------------------------

    def expiration_ms(self, topic: Topic) -> int:
        """How long a lite topic may be idle; -1: for ever. The attribute has minutes, 30 days at most."""
        minutes = topic.config.attributes.get(LITE_EXPIRATION, "")
        if not (minutes.isascii() and minutes.isdigit() and len(minutes) < 10) or not int(minutes):
            return -1
        return min(int(minutes), _LONGEST_EXPIRATION_MIN) * _MINUTE_MS

    def next_look_ms(self, lite: LiteTopic, now_ms: int) -> int:
        """When it may be too idle, or its first message too old; 0: nothing of that will be."""
        expiration_ms = self.expiration_ms(lite.topic)
        looks = [lite.last_ms + expiration_ms] if expiration_ms >= 0 else []
        if lite.minimum < lite.maximum:
            oldest_ms = self.stored_ms(lite, lite.minimum) or lite.last_ms
            looks.append(max(oldest_ms + self.kept_ms(lite.topic), now_ms) + _LOOK_MS)
        elif not lite.maximum:
            looks.append(max(lite.last_ms + self.kept_ms(lite.topic), now_ms + _LOOK_MS))
        return min(looks, default=0)

    def kept_ms(self, topic: Topic) -> int:
        """How long messages are kept, and a lite topic that never had one."""
        own = topic.config.retention_ms
        kept_ms = self._settings.retention_ms if own is None else own
        return kept_ms if kept_ms > 0 else _LONG_MS

    def look_at(self, lite: LiteTopic, due_ms: int) -> None:
        """Have it looked at then (0: never), instead of when it was to be before."""
        topic_id = lite.topic.id
        if lite.due_ms:
            self._due.remove(due_key(lite.due_ms, TOPIC_DUE, topic_id, lite.id, 0))
        lite.due_ms = due_ms
        if due_ms:
            self._due.add(due_key(due_ms, TOPIC_DUE, topic_id, lite.id, 0), lite.name.encode())
        self.put(lite)

    def trim(self, lite: LiteTopic, looks: int) -> int:
        """Forget places of messages that retention removed; how many, at most `looks`."""
        topic, first = lite.topic, lite.minimum
        end = min(lite.visible, first + looks)
        keys = [log_key(topic.id, lite.id, offset) for offset in range(first, end)]
        for key, spot in zip(keys, self._store.get_many(LITE, keys), strict=True) if keys else ():
            if spot is not None:
                queue_id, offset = unpack_spot(spot)
                if queue_id < len(topic.queues) and offset >= topic.queues[queue_id].minimum:
                    break
                self._store.delete(LITE, key)
            lite.minimum += 1
        return lite.minimum - first

    def delete(self, lite: LiteTopic) -> None:
        """Forget a lite topic, and where its messages are."""
        topic_id, store = lite.topic.id, self._store
        lite.gone = True
        if lite.due_ms:
            self._due.remove(due_key(lite.due_ms, TOPIC_DUE, topic_id, lite.id, 0))
        store.delete(LITE, topic_key(topic_id, lite.name.encode()))
        if lite.maximum - lite.minimum <= _FEW:
            for offset in range(lite.minimum, lite.maximum):
                store.delete(LITE, log_key(topic_id, lite.id, offset))
        else:
            store.delete_range(LITE, log_key(topic_id, lite.id, 0), log_key(topic_id, lite.id + 1, 0))
        header = self._header(lite.topic)
        header.count = max(header.count - 1, 0)
        self._put_header(lite.topic, header)
        self._kept.drop((topic_id, lite.name))
        if self._deleted_turn != store.turn:
            self._deleted_turn = store.turn
            self._deleted.clear()
        self._deleted.add((topic_id, lite.name))

    def applied_ms(self, topic: Topic) -> int | None:
        """The expiration that all lite topics of a topic are due by; None when there are none."""
        header = self._header(topic)
        return header.applied_ms if header.count else None

    def applied(self, topic: Topic, expiration_ms: int) -> None:
        header = self._header(topic)
        header.applied_ms = expiration_ms
        self._put_header(topic, header)

    def put(self, lite: LiteTopic) -> None:
        """As it is now. The same step may put it again."""
        lite.turn = self._store.turn
        value = pack_topic(lite.id, lite.minimum, lite.maximum, lite.last_ms, lite.due_ms)
        self._store.put(LITE, topic_key(lite.topic.id, lite.name.encode()), value)

    # -- inside -------------------------------------------------------------------------------

    def _decoded(self, topic: Topic, name: str, value: bytes) -> LiteTopic:
        lite_id, minimum, maximum, last_ms, due_ms = unpack_topic(value)
        lite = LiteTopic(topic, name, lite_id)
        lite.minimum, lite.maximum, lite.visible = minimum, maximum, maximum
        lite.last_ms, lite.due_ms = last_ms, due_ms
        return lite

    def _read(self, topic: Topic, spot: bytes | None) -> tuple[bytes, Record] | None:
        if spot is None:
            return None
        queue_id, offset = unpack_spot(spot)
        record = self._log.get(topic, queue_id, offset)
        decoded = self._log.decoded(topic, queue_id, offset, record) if record is not None else None
        return (record, decoded) if record is not None and decoded is not None else None

    def _header(self, topic: Topic) -> _Header:
        header = self._headers.get(topic.id)
        if header is None:
            value = self._store.get(LITE, topic_key(topic.id))
            unpacked = unpack_header(value) if value is not None else (0, 1, self.expiration_ms(topic))
            header = self._headers[topic.id] = _Header(*unpacked)
        return header

    def _put_header(self, topic: Topic, header: _Header) -> None:
        value = pack_header(header.count, header.next_id, header.applied_ms)
        self._store.put(LITE, topic_key(topic.id), value)

    def _raise_visible(self, grown: dict[LiteTopic, int]) -> None:
        for lite, maximum in grown.items():
            lite.visible = maximum
        if self.on_arrival is not None:
            for lite in grown:
                self.on_arrival(lite)
