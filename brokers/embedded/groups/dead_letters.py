"""Dead letters: messages that a group could not consume, kept in a topic of their own.

Source: protocol facts 3.10 and 7.8 (a local broker may fill in DLQ_ORIGIN_*).
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache, partial

from brokers.dead_letters import DeadLetterHandler
from brokers.embedded.catalog.catalog import Catalog, Group, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.errors import LocalWireError
from popgate.groups.group_config import BROADCAST_GROUP
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import TopicConfig
from popgate.naming import dead_letter_topic, pop_retry_topic_v2, retry_topic
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    LONGEST_BLOCK,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
    WAIT,
    find_property,
    set_property,
)
from popgate.wire.messages.records import Record, decode_record

_UNIQ_KEY = UNIQ_KEY.encode()
_KEYS = KEYS.encode()
_ORIGIN_TOPIC = DLQ_ORIGIN_TOPIC.encode()
_ORIGIN_ID = DLQ_ORIGIN_MESSAGE_ID.encode()
_RETRY_TOPIC = RETRY_TOPIC.encode()
_WAIT = WAIT.encode()
_ORIGIN_PLACE = ORIGIN_MESSAGE_ID.encode()
MOST_MOVED = 8_192
"""Last deliveries that are remembered: late acknowledgements come soon after the message was moved."""


class DeadLetters:
    """Adds copies of records to the dead-letter topics; the caller removes the original, then commits."""

    def __init__(self, store: Store, log: MessageLog, catalogue: Catalog, clock: Clock) -> None:
        self.on_spent: DeadLetterHandler | None = None
        """Called with each message whose attempts were used up, once its copy is stored."""
        self._store = store
        self._log = log
        self._catalogue = catalogue
        self._clock = clock
        self._moved: OrderedDict[bytes, int] = OrderedDict()

    def remember_moved(self, message: bytes, pop_ms: int) -> None:
        """`pop_ms` was the last delivery of a message, whose key says for which group: it lies elsewhere now.

        Nothing else is left of it, and whoever acknowledges it late must not be told that it was done. The
        newest ones only, and until the store is read again: at a start, and after a write that failed.
        """
        self._moved[message] = pop_ms
        self._moved.move_to_end(message)
        if len(self._moved) > MOST_MOVED:
            self._moved.popitem(last=False)

    def was_moved(self, message: bytes, pop_ms: int) -> bool:
        """Whether the message of this delivery was moved to another topic, as far as is remembered."""
        return self._moved.get(message) == pop_ms

    def add(self, group: Group, topic: Topic, record: bytes, *, spent: bool = False) -> None:
        """Copy a record of `topic` to the dead-letter topic of `group`, which is created on demand.

        `spent`: its attempts were used up; no client requested it.
        """
        decoded = decode_record(record)
        origin = _taken_from(group, topic, decoded)
        self.add_decoded(group, origin, decoded)
        if spent and self.on_spent is not None:
            read = origin.decode("utf-8", "replace")
            self._store.after_commit(partial(self.on_spent, _told(group), read, decoded.properties))

    def add_decoded(self, group: Group, topic: bytes, message: Record, reconsume_times: int = 0) -> int:
        """The same for a decoded record; `topic` is the name of the one that it came from. The new offset."""
        target = self._catalogue.ensure_topic(_dead_letter_config(_told(group)), bounded=False)
        block = message.properties
        message_id = find_property(block, _UNIQ_KEY)
        if message_id is None:
            message_id = encode_offset_message_id(
                host_text(message.store_host), message.commit_offset
            ).encode()
        return self._log.append_new(
            target,
            0,
            message.body,
            _with_origin(message, topic, message_id),
            message_id=message_id,
            keys=(find_property(block, _KEYS) or b"").split(),
            now_ms=self._clock.now_ms(),
            sys_flag=message.sys_flag,
            flag=message.flag,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=reconsume_times,
        )


def _with_origin(message: Record, topic: bytes, message_id: bytes) -> bytes:
    """The properties, where the message came from first, and from which topic it was taken now.

    Each name only where there is room for it. Source of those that classic clients know: protocol facts 7.8.
    """
    block = message.properties
    names: list[tuple[bytes, bytes]] = [(_RETRY_TOPIC, topic)]
    if find_property(block, _ORIGIN_TOPIC) is None:
        block = _fitting(block, [(_ORIGIN_TOPIC, topic), (_ORIGIN_ID, message_id)])
    if find_property(block, _ORIGIN_PLACE) is None:
        place = encode_offset_message_id(host_text(message.store_host), message.commit_offset)
        names.append((_ORIGIN_PLACE, place.encode()))
    names.append((_WAIT, b"false"))
    for name in names:
        block = _fitting(block, [name])
    return block


def _fitting(block: bytes, names: list[tuple[bytes, bytes]]) -> bytes:
    """The properties with these, or as they were when that is too much, or one cannot be told.

    A message may be stored with an id that has a separator in it, or none: whoever sent it wrote the block.
    """
    full = block
    try:
        for name, value in names:
            full = set_property(full, name, value)
    except LocalWireError:
        return block
    return full if len(full) <= LONGEST_BLOCK else block


def topic_in(properties: bytes, otherwise: bytes) -> bytes:
    """The topic that RETRY_TOPIC names; `otherwise` where it is not there, or says what no property can."""
    named = find_property(properties, _RETRY_TOPIC)
    return named if named and b"\x01" not in named else otherwise


def _taken_from(group: Group, topic: Topic, message: Record) -> bytes:
    """The topic that the group read: of its own retry topics that is the one whose retries are in there."""
    if topic.name == retry_topic(group.name):
        return topic_in(message.properties, topic.packed_name)
    return topic.packed_name.removeprefix(pop_retry_topic_v2(group.name, "").encode())


def _told(group: Group) -> str:
    """Whose dead letters these are: those of one client of a broadcast group are the group's."""
    return group.config.attributes.get(BROADCAST_GROUP) or group.name


@lru_cache(maxsize=1024)
def _dead_letter_config(group: str) -> TopicConfig:
    return TopicConfig(dead_letter_topic(group), read_queues=1, write_queues=1)
