"""Delayed messages: stored in `timers`, moved to their queue at their due time, or recalled.

Due times are exact to the millisecond, and no message is early. One tick moves a bounded number, in the order
of the due times; the deadline then stays in the past until the backlog is empty, so that a broker
that was down for a day serves its clients while it catches up.

Source of the recall handle: protocol facts 3.9.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import struct
from typing import NamedTuple

from brokers.embedded.catalog.catalog import Catalog, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import check_whole
from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import HIGHEST_U64, TIMERS, text_hash, timer_key
from brokers.embedded.storage.store import Store
from popgate.errors import BadRequest, NotFound, PeerWireError, shown
from popgate.ids.receipt import NO_RECALL_HANDLE
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property
from popgate.wire.messages.records import record_properties

_PLACE = struct.Struct(">IH")
"""In front of the record: topic id, queue."""
_LONGEST_HANDLE = 1024
_LATEST_MS = 1 << 63
_UNIQ_KEY = UNIQ_KEY.encode()
_KEYS = KEYS.encode()


class RecallHandle(NamedTuple):
    """Which delayed message a client may take back."""

    topic: str
    broker: str
    due_ms: int
    message_id: str

    def encode(self) -> str:
        """URL-safe Base64, padded, of `v1 <topic> <broker> <due ms> <message id>`."""
        text = f"v1 {self.topic} {self.broker} {self.due_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def parse_recall_handle(handle: str) -> RecallHandle:
    """Raises BadRequest for anything that `RecallHandle.encode` cannot have made."""
    if len(handle) > _LONGEST_HANDLE:
        raise BadRequest(
            f"invalid recall handle: it has {len(handle)} characters, the limit is {_LONGEST_HANDLE}",
            known_as=NO_RECALL_HANDLE,
        )
    try:
        text = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise _bad(handle, "it is no URL-safe Base64 of a text") from None
    parts = text.split(" ", 4)
    if len(parts) != 5 or parts[0] != "v1" or not all(parts):
        raise _bad(handle, "it does not hold the five parts of version v1")
    _, topic, broker, due, message_id = parts
    if not (due.isascii() and due.isdigit() and len(due) < 20 and int(due) < _LATEST_MS):
        raise _bad(handle, "its delivery time is no number of milliseconds")
    return RecallHandle(topic, broker, int(due), message_id)


def _bad(handle: str, why: str) -> BadRequest:
    return BadRequest(f"invalid recall handle {shown(handle)}: {why}", known_as=NO_RECALL_HANDLE)


def record_texts(record: bytes) -> tuple[bytes, list[bytes]]:
    """The message id of an encoded record, and its keys: what its index entries are made of."""
    properties = record_properties(record)
    joined = find_property(properties, _KEYS)
    keys = [key for key in joined.split(b" ") if key] if joined else []
    return find_property(properties, _UNIQ_KEY) or b"", keys


def _unpack(value: bytes) -> tuple[int, int, bytes]:
    """Topic id, queue and record of a delayed message. Raises PeerWireError when it is damaged."""
    record = value[_PLACE.size :]
    check_whole(record)
    topic_id, queue_id = _PLACE.unpack_from(value)
    return topic_id, queue_id, record


def _is_of(value: bytes, topic_id: int, message_id: bytes) -> bool:
    try:
        found_id, _, record = _unpack(value)
    except PeerWireError:
        return False
    return found_id == topic_id and record_texts(record)[0] == message_id


class DelayedMessages:
    """The delayed messages of all topics. Adds to the store's batch; the caller commits."""

    def __init__(self, store: Store, log: MessageLog, catalogue: Catalog, settings: EmbeddedSettings) -> None:
        self._log = log
        self._catalogue = catalogue
        self._settings = settings
        self._waiting = DueQueue(store, TIMERS)
        self._sequence = secrets.randbits(64)
        """Begins anywhere, so that a message that was sent twice is held twice, also over a restart."""

    def __repr__(self) -> str:
        return f"<DelayedMessages next {self._waiting.deadline()}>"

    def load(self) -> None:
        """Load from the store, replacing the contents of memory."""
        self._waiting.load()

    def deadline(self) -> int | None:
        """Wall time in ms at which `tick` has something to do; the past: now, there is more."""
        return self._waiting.deadline()

    def add(self, topic: Topic, queue_id: int, record: bytes, due_ms: int, message_id: bytes) -> str:
        """Hold an encoded record back until `due_ms`; its recall handle."""
        self._sequence = self._sequence + 1 & HIGHEST_U64
        key = timer_key(due_ms, text_hash(b"i", message_id), self._sequence)
        self._waiting.add(key, _PLACE.pack(topic.id, queue_id) + record)
        name = message_id.decode("utf-8", "replace")
        return RecallHandle(topic.name, self._settings.name, due_ms, name).encode()

    def recall(self, topic: Topic, handle: str) -> str:
        """Take back a message that is still held; its id. All copies, if it was sent more than once.

        Raises BadRequest (malformed, of another topic or broker), NotFound (delivered or recalled).
        """
        wanted = parse_recall_handle(handle)
        if wanted.topic != topic.name:
            raise BadRequest(
                f"invalid recall handle: it is for topic {shown(wanted.topic)}, not for {shown(topic.name)}"
            )
        if wanted.broker != self._settings.name:
            raise BadRequest(f"invalid recall handle: it was given out by broker {shown(wanted.broker)}")
        message_id = wanted.message_id.encode()
        id_hash = text_hash(b"i", message_id)
        lowest = timer_key(wanted.due_ms, id_hash, 0)
        beyond = timer_key(wanted.due_ms, id_hash, HIGHEST_U64) + b"\0"
        due_keys = [
            key for key, value in self._waiting.within(lowest, beyond) if _is_of(value, topic.id, message_id)
        ]
        if not due_keys:
            raise NotFound(
                f"no delayed message {shown(wanted.message_id)} is held for topic {topic.name}:"
                " it was delivered or recalled"
            )
        for key in due_keys:
            self._waiting.remove(key)
        return wanted.message_id

    def tick(self, now_ms: int) -> None:
        """Move due messages to their queues, a bounded number.

        Messages of deleted topics vanish, damaged ones are set aside.
        """
        settings = self._settings
        for key, value in self._waiting.take(now_ms, settings.max_due, settings.max_due_bytes):
            try:
                topic_id, queue_id, record = _unpack(value)
                topic = self._catalogue.topic_by_id(topic_id)
                if topic is not None and queue_id >= len(topic.queues):
                    raise PeerWireError(f"topic {topic.name} has no queue {queue_id}")
            except PeerWireError as error:
                self._log.damages.move(TIMERS, [(key, value)], error)
                continue
            if topic is None:
                continue
            message_id, keys = record_texts(record)
            self._log.append(topic, queue_id, record, message_id=message_id, keys=keys)
