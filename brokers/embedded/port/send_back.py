"""Messages that a consumer pulled and could not process: a copy of each is stored in `%RETRY%group`.

Source: protocol facts 7.8, CONSUMER_SEND_MSG_BACK.
"""

from __future__ import annotations

from functools import lru_cache

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.engine import Engine
from brokers.embedded.engine.facet import Facet
from brokers.embedded.groups.dead_letters import topic_in
from brokers.embedded.port.lookup import record_at
from popgate.context import Context
from popgate.errors import BadRequest, NotFound, shown
from popgate.groups.delay_levels import delay_ms_of
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import Message, SendBack, TopicConfig
from popgate.naming import RETRY_PREFIX, retry_topic
from popgate.wire.messages.hosts import host_text, pack_host
from popgate.wire.messages.properties import (
    DELAY,
    KEYS,
    LONGEST_BLOCK,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_MEMBER,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    drop_properties,
    find_property,
    set_if_room,
    set_property,
)
from popgate.wire.messages.records import Record, decode_record, encode_record

_UNIQ_KEY, _KEYS = UNIQ_KEY.encode(), KEYS.encode()
_RETRY_TOPIC, _ORIGIN_ID, _WAIT = RETRY_TOPIC.encode(), ORIGIN_MESSAGE_ID.encode(), WAIT.encode()
_COUNTS = RECONSUME_TIME.encode(), MAX_RECONSUME_TIMES.encode()
_OF_THE_ROAD = (
    *_COUNTS,
    *(name.encode() for name in (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)),
)
"""Properties that say when and how often a message was to come, and not what it is."""
_MOST, _MEMBER = MAX_RECONSUME_TIMES.encode(), RETRY_MEMBER.encode()
_FIRST_LEVEL = 3
MOST_TIMES = (1 << 31) - 1
"""What a record counts to; a producer may say that a message had come so often before it was sent."""


class SendBackFacet(Facet):
    """The port's `send_back`."""

    async def send_back(self, context: Context, request: SendBack) -> None:
        engine = self._engine
        engine.check_writable()
        group = engine.catalogue.group(request.group)
        if request.broker not in ("", engine.settings.name):
            raise BadRequest(f"there is no broker {shown(request.broker)}")
        stored = record_at(engine, request.commit_offset)
        if stored is None:
            raise NotFound(f"broker {engine.settings.name} has no message at {request.commit_offset}")
        topic, message = stored
        most = group.config.max_attempts if request.max_attempts is None else request.max_attempts
        try:
            if request.delay_level < 0 or message.reconsume_times + 1 >= most:
                self._bury(group, topic, message, request.store_host)
            else:
                level = request.delay_level or _FIRST_LEVEL + message.reconsume_times
                self._hold(group, topic, message, delay_ms_of(level), request)
        except Exception as error:
            engine.abandon(error)
            raise
        await engine.settled()

    # -- inside -------------------------------------------------------------------------------

    def _hold(self, group: Group, topic: Topic, message: Record, delay_ms: int, request: SendBack) -> None:
        engine = self._engine
        properties = _with_origin(topic, message, request.store_host)
        if request.member:
            properties = set_if_room(properties, _MEMBER, request.member.encode())
        retries = engine.catalogue.ensure_topic(retry_config(group.name), bounded=False)
        now_ms = engine.clock.now_ms()
        record = encode_record(
            retries.packed_name,
            0,
            0,
            0,
            message.body,
            properties,
            message.sys_flag,
            message.flag,
            message.born_ms,
            message.born_host,
            now_ms,
            engine.store_host,
            _once_more(message),
            message.prepared_offset,
        )
        message_id = find_property(message.properties, _UNIQ_KEY) or b""
        engine.timers.add(retries, 0, record, now_ms + delay_ms, message_id)
        engine.arm("timers")

    def _bury(self, group: Group, topic: Topic, message: Record, host: str) -> None:
        engine = self._engine
        origin = _came_from(topic, message)
        letter = message._replace(properties=_with_origin(topic, message, host))
        engine.parts.dead_letters.add_decoded(group, origin, letter, _once_more(message))
        engine.tallies.dead_lettered += 1


def bury_spent(engine: Engine, topic: Topic, message: Message, properties: bytes) -> int | None:
    """What a consumer sends to its retry topic itself, and too often, becomes a dead letter: its offset.

    None: it may come again. A group that holds locks reads in order: its clients try again in their own
    hands, and send only what they gave up. Raises GroupNotFound. Source: protocol facts 7.8, send rule 7.
    """
    group = engine.catalogue.group(topic.name.removeprefix(RETRY_PREFIX))
    most_text = find_property(properties, _MOST) or b""
    most = int(most_text) if most_text.isdigit() and len(most_text) < 10 else group.config.max_attempts - 1
    if message.attempt <= most and not engine.locks.any_of(group.name):
        return None
    record = encode_record(
        topic.packed_name,
        0,
        0,
        0,
        message.body,
        drop_properties(properties, _OF_THE_ROAD),
        message.sys_flag,
        message.flag,
        message.born_ms or engine.clock.now_ms(),
        pack_host(message.born_host),
        engine.clock.now_ms(),
        engine.store_host,
    )
    decoded = decode_record(record)
    engine.tallies.dead_lettered += 1
    # What tells dead letters of consumers that pull from those that were popped is that they have a count.
    count = max(message.attempt, 1)
    return engine.parts.dead_letters.add_decoded(group, _came_from(topic, decoded), decoded, count)


def _once_more(message: Record) -> int:
    return min(message.reconsume_times + 1, MOST_TIMES)


def without_counts(properties: bytes) -> bytes:
    """The properties without how often a message came: that is in the record."""
    return drop_properties(properties, _COUNTS)


def _came_from(topic: Topic, message: Record) -> bytes:
    """The topic that the message was sent to, whichever it was pulled from."""
    return topic_in(message.properties, topic.packed_name)


def _with_origin(topic: Topic, message: Record, host: str) -> bytes:
    return retry_properties(message, _came_from(topic, message), host)


def retry_properties(message: Record, topic: bytes, host: str) -> bytes:
    """The properties of a copy in `%RETRY%group`, of a message that was sent to `topic`.

    Of those that are added only the topic when there is no room for all.
    """
    block = drop_properties(message.properties, _OF_THE_ROAD)
    named = set_property(block, _RETRY_TOPIC, topic)
    if len(named) > LONGEST_BLOCK:
        return block
    full = named
    if find_property(block, _ORIGIN_ID) is None:
        first = encode_offset_message_id(host or host_text(message.store_host), message.commit_offset)
        full = set_property(full, _ORIGIN_ID, first.encode())
    full = set_property(full, _WAIT, b"false")
    return full if len(full) <= LONGEST_BLOCK else named


@lru_cache(maxsize=1024)
def retry_config(group: str) -> TopicConfig:
    """The topic that classic consumers of a group get messages again from. Source: protocol facts 7.8."""
    return TopicConfig(retry_topic(group), read_queues=1, write_queues=1)
