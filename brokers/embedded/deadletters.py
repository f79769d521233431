"""Dead letters: messages that a group could not consume, kept in a topic of their own.

Source: protocol facts 3.10 and 7.8 (a local broker may fill in DLQ_ORIGIN_*).
"""

from __future__ import annotations

from functools import lru_cache

from brokers.embedded.log import MessageLog
from brokers.embedded.topics import Catalogue, Group, Topic
from popgate.clock import Clock
from popgate.message_id import encode_offset_message_id
from popgate.model import BROADCAST_GROUP, TopicConfig
from popgate.naming import dead_letter_topic, pop_retry_topic_v2
from popgate.wire.hosts import host_text
from popgate.wire.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    LONGEST_BLOCK,
    RETRY_TOPIC,
    UNIQ_KEY,
    find_property,
    set_property,
)
from popgate.wire.records import decode_record

_UNIQ_KEY = UNIQ_KEY.encode()
_KEYS = KEYS.encode()
_ORIGIN_TOPIC = DLQ_ORIGIN_TOPIC.encode()
_ORIGIN_ID = DLQ_ORIGIN_MESSAGE_ID.encode()
_RETRY_TOPIC = RETRY_TOPIC.encode()


class DeadLetters:
    """Adds copies of records to the dead-letter topics; the caller removes the original, then commits."""

    def __init__(self, log: MessageLog, catalogue: Catalogue, clock: Clock) -> None:
        self._log = log
        self._catalogue = catalogue
        self._clock = clock

    def add(self, group: Group, topic: Topic, record: bytes) -> None:
        """Copy a record of `topic` to the dead-letter topic of `group`, which is made on demand."""
        target = self._catalogue.ensure_topic(_dead_letter_config(_told(group)), bounded=False)
        found = decode_record(record)
        block = found.properties
        message_id = find_property(block, _UNIQ_KEY)
        if message_id is None:
            message_id = encode_offset_message_id(host_text(found.store_host), found.commit_offset).encode()
        self._log.append_new(
            target,
            0,
            found.body,
            _with_origin(block, _taken_from(group, topic), message_id),
            message_id=message_id,
            keys=(find_property(block, _KEYS) or b"").split(),
            now_ms=self._clock.now_ms(),
            sys_flag=found.sys_flag,
            flag=found.flag,
            born_ms=found.born_ms,
            born_host=found.born_host,
            store_host=found.store_host,
        )


def _with_origin(block: bytes, topic: bytes, message_id: bytes) -> bytes:
    """The properties, where the message came from first, and from which topic it was taken now if that
    is another one; as they were when that is too much.
    """
    marked = block
    if find_property(block, _ORIGIN_TOPIC) is None:
        marked = set_property(set_property(block, _ORIGIN_TOPIC, topic), _ORIGIN_ID, message_id)
    if (find_property(marked, _RETRY_TOPIC) or find_property(marked, _ORIGIN_TOPIC)) != topic:
        marked = set_property(marked, _RETRY_TOPIC, topic)
    return marked if len(marked) <= LONGEST_BLOCK else block


def _taken_from(group: Group, topic: Topic) -> bytes:
    """The topic that the group read: of its own retry topic that is the one whose retries are in there."""
    return topic.packed_name.removeprefix(pop_retry_topic_v2(group.name, "").encode())


def _told(group: Group) -> str:
    """Whose dead letters these are: those of one client of a broadcast group are the group's."""
    return group.config.attributes.get(BROADCAST_GROUP) or group.name


@lru_cache(maxsize=1024)
def _dead_letter_config(group: str) -> TopicConfig:
    return TopicConfig(dead_letter_topic(group), read_queues=1, write_queues=1)
