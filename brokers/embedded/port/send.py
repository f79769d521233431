"""Stores messages: in a queue at once, or held back until their time or the end of their transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from brokers.embedded.catalog.catalog import Topic
from brokers.embedded.engine.facet import Facet
from brokers.embedded.port.send_back import bury_spent, without_counts
from brokers.embedded.produce.dedup_segments import OFFSET_BITS
from brokers.embedded.produce.deduplication import FULL, HASH_MASK
from brokers.embedded.runtime.disk_guard import LOOK_MS
from brokers.embedded.storage.keys import commit_offset, commit_offsets
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    DelayTooLong,
    Forbidden,
    GatewayError,
    LocalWireError,
    PropertiesTooLarge,
)
from popgate.ids.hashes import consistent_hash, java_hash
from popgate.ids.message_id import make_message_id
from popgate.messages.compaction_key import check_compactable
from popgate.messages.packed_messages import PackedMessages, SentTogether
from popgate.model import Message, MessageType, Sent
from popgate.naming import RETRY_PREFIX
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import (
    KEYS,
    LITE_TOPIC,
    LONGEST_BLOCK,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    find_property,
    set_property,
)
from popgate.wire.messages.records import encode_record

_UNIQ_KEY = UNIQ_KEY.encode()
_TRANSACTION = MessageType.TRANSACTION


class SendFacet(Facet):
    """The port's `send`, `send_packed` and `recall`."""

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        engine = self._engine
        engine.check_writable()
        if not messages:
            return []
        topic, now_ms = self._begin(messages[0].topic)
        return await self._add_each(topic, messages, now_ms)

    async def send_packed(self, context: Context, packed: PackedMessages) -> Sequence[Sent | GatewayError]:
        engine = self._engine
        engine.check_writable()
        topic, now_ms = self._begin(packed.topic)
        results = self._add_packed(topic, packed, now_ms)
        if results is None:
            return await self._add_each(topic, packed.unpack(), now_ms)
        repeats = engine.repeats
        if len(repeats.places) >= FULL:
            repeats.close(now_ms)
        await engine.settled()
        return results

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        engine = self._engine
        engine.check_writable()
        message_id = engine.timers.recall(engine.catalogue.topic(topic), recall_handle)
        await engine.settled()
        return message_id

    # -- inside -------------------------------------------------------------------------------

    def _begin(self, name: str) -> tuple[Topic, int]:
        """The topic and the time of a send. Raises errors that concern all its messages."""
        engine = self._engine
        topic = engine.catalogue.topic(name)
        if not topic.writable:
            raise Forbidden(f"topic {topic.name} is not writable")
        topic.turn += 1
        now_ms = engine.clock.now_ms()
        room = engine.room
        if room.short or not 0 < room.look_at_ms - now_ms <= LOOK_MS:  # a call less for nearly every send
            room.check(now_ms)
        repeats = engine.repeats
        if not repeats.since_ms <= now_ms < repeats.due_ms:
            repeats.close(now_ms)
        repeats.sent_ms = now_ms
        return topic, now_ms

    async def _add_each(
        self, topic: Topic, messages: Sequence[Message], now_ms: int
    ) -> list[Sent | GatewayError]:
        """Add one after the other, and wait until that is done."""
        engine = self._engine
        repeats = engine.repeats
        results: list[Sent | GatewayError] = []
        failed = 0
        for message in messages:
            try:
                results.append(self._add(topic, message, now_ms))
            except GatewayError as error:
                results.append(error)
                failed += 1
        if failed == len(results):
            first = results[0]
            if isinstance(first, GatewayError) and all(type(result) is type(first) for result in results):
                raise first
            return results
        if len(repeats.places) >= FULL:
            repeats.close(now_ms)
        await engine.settled()
        return results

    def _add_packed(self, topic: Topic, packed: PackedMessages, now_ms: int) -> SentTogether | None:
        """Add all messages to the batch, in one queue, each as `_add` does it.

        None, and nothing is added: one of them may have come before, they do not tell enough, their queue is
        not there, or each must be looked at.
        """
        if not packed.origins or topic.compacted:
            return None
        engine = self._engine
        queue_id, name = packed.queue_id, engine.settings.name
        if queue_id < 0:
            queue_id = topic.turn % topic.config.write_queues
        elif queue_id >= topic.config.write_queues or packed.broker not in ("", name):
            return None
        repeats = engine.repeats
        ids = packed.message_ids
        known: list[bytes] = []
        seen: dict[int, int] = {}
        number = repeats.number
        if repeats.on and not packed.may_come_again:
            known = [text_id + topic.mark for text_id in ids]
            seen = dict.fromkeys([hash(key) & HASH_MASK for key in known], number)
            if len(seen) != len(known) or not (
                repeats.young.keys().isdisjoint(seen) and repeats.old.keys().isdisjoint(seen)
            ):
                return None
        try:
            first = engine.log.append_packed(topic, queue_id, packed, now_ms, engine.store_host)
        except LocalWireError as error:
            raise BadRequest(f"the messages cannot be stored: {error}") from error
        if seen:
            if repeats.number != number:  # the first place of a turn has closed the segment
                seen = dict.fromkeys(seen, repeats.number)
            repeats.young.update(seen)
            repeats.places.update(zip(known, count(queue_id << OFFSET_BITS | first)))
        places = commit_offsets(topic.id, queue_id, first, len(ids))
        return SentTogether(ids, name, queue_id, first, places)

    def _add(self, topic: Topic, message: Message, now_ms: int) -> Sent:
        """Add one message to the batch. Raises GatewayError, having added nothing."""
        engine = self._engine
        if message.topic != topic.name:
            raise BadRequest(f"messages for {topic.name} and other topics cannot be sent together")
        properties, message_id = message.properties, message.message_id
        if not properties or not message_id:
            properties, message_id = _complete(message)
        if topic.compacted:
            check_compactable(topic.name, properties, message.lite_topic)
        repeats = engine.repeats
        try:
            packed_id = message_id.encode()
            key = packed_id + topic.mark if repeats.on and not message.may_come_again else b""
        except UnicodeEncodeError:
            # Several such ids are stored alike: whether one comes again nobody can tell.
            packed_id, key = message_id.encode("utf-8", "replace"), b""
        if key:
            seen = hash(key) & HASH_MASK
            if seen in repeats.young or seen in repeats.old:
                known = repeats.find(key)
                if known is not None:
                    if known.transaction_id:
                        known.commit_offset, known.offset = engine.halves.place_of(known.transaction_id)
                    elif not known.recall_handle:
                        known.commit_offset = commit_offset(topic.id, known.queue_id, known.offset)
                    return known
        name = engine.settings.name
        queue_id = message.queue_id
        if queue_id < 0:
            queue_id = _choose(message, topic.turn, topic.config.write_queues)
        elif queue_id >= topic.config.write_queues:
            raise BadRequest(
                f"topic {topic.name} has no queue {queue_id} to write to, its queues are 0 to"
                f" {topic.config.write_queues - 1}"
            )
        if message.broker and message.broker != name:
            engine.queue(topic, message.broker, queue_id)
        try:
            # A consumer that gives up the first delivery tells of no attempt before.
            if (message.attempt or message.may_come_again) and topic.name.startswith(RETRY_PREFIX):
                buried = bury_spent(engine, topic, message, properties)
                if buried is not None:
                    return Sent(message_id, name, 0, buried)
                properties = without_counts(properties)
            if message.deliver_at_ms <= now_ms and message.type is not _TRANSACTION:
                lite, lite_ms = None, 0
                if message.lite_topic:
                    lite_ms = engine.lites.now_ms()
                    lite = engine.lites.topics.ensure(topic, message.lite_topic, lite_ms)
                offset = engine.log.append_new(
                    topic,
                    queue_id,
                    message.body,
                    properties,
                    packed_id,
                    [key.encode("utf-8", "replace") for key in message.keys] if message.keys else (),
                    now_ms,
                    message.sys_flag,
                    message.flag,
                    message.born_ms or now_ms,
                    pack_host(message.born_host),
                    engine.store_host,
                    message.attempt,
                )
                if lite is not None:
                    engine.lites.topics.append(lite, queue_id, offset, lite_ms)
                if key:
                    repeats.young[seen] = repeats.number
                    repeats.places[key] = queue_id << OFFSET_BITS | offset
                return Sent(
                    message_id, name, queue_id, offset, "", "", commit_offset(topic.id, queue_id, offset)
                )
            sent = self._hold_back(topic, queue_id, message, message_id, packed_id, properties, now_ms)
            if key:
                repeats.add_held(key, sent)
            return sent
        except LocalWireError as error:
            if len(properties) > LONGEST_BLOCK:
                raise PropertiesTooLarge(len(properties), LONGEST_BLOCK, "bytes of properties") from error
            raise BadRequest(f"the message cannot be stored: {error}") from error

    def _hold_back(
        self,
        topic: Topic,
        queue_id: int,
        message: Message,
        message_id: str,
        packed_id: bytes,
        properties: bytes,
        now_ms: int,
    ) -> Sent:
        """Keep a delayed message until its time, a half message until its transaction ends."""
        engine = self._engine
        delay_ms, longest_ms = message.deliver_at_ms - now_ms, engine.settings.max_delay_ms
        if delay_ms > longest_ms:
            raise DelayTooLong(delay_ms, longest_ms)
        record = encode_record(
            topic.packed_name,
            queue_id,
            0,
            0,
            message.body,
            properties,
            message.sys_flag,
            message.flag,
            message.born_ms or now_ms,
            pack_host(message.born_host),
            now_ms,
            engine.store_host,
            message.attempt,
        )
        sent = Sent(message_id, engine.settings.name, queue_id, 0)
        if message.type is _TRANSACTION:
            message.message_id = message_id
            sent.transaction_id = engine.halves.add(topic, queue_id, record, message)
            sent.commit_offset, sent.offset = engine.halves.place_of(sent.transaction_id)
            engine.arm("halves")
        else:
            sent.recall_handle = engine.timers.add(topic, queue_id, record, message.deliver_at_ms, packed_id)
            engine.arm("timers")
        return sent


def _choose(message: Message, turn: int, queues: int) -> int:
    """The queue of a message that names none: its priority, the one of its message group, or in turn."""
    if message.priority is not None:
        return min(message.priority, queues - 1)
    return _queue_of(message.message_group, queues) if message.message_group else turn % queues


@lru_cache(maxsize=8192)
def _queue_of(message_group: str, queues: int) -> int:
    return consistent_hash(java_hash(message_group), queues)


def _complete(message: Message) -> tuple[bytes, str]:
    """Properties and id of a message that lacks one of them. Source: protocol facts 7.8, send rule 8."""
    properties = message.properties
    message_id = message.message_id
    if not message_id and properties:
        message_id = (find_property(properties, _UNIQ_KEY) or b"").decode("utf-8", "replace")
    message_id = message_id or make_message_id()
    if not properties:
        named = {
            TAGS: message.tag,
            KEYS: " ".join(message.keys),
            SHARDING_KEY: message.message_group,
            PRIORITY: "" if message.priority is None else str(message.priority),
            LITE_TOPIC: message.lite_topic,
            UNIQ_KEY: message_id,
        }
        try:
            return encode_properties({**message.user_properties, **named}), message_id
        except LocalWireError as error:
            raise BadRequest(f"the message cannot be stored: {error}") from error
    if find_property(properties, _UNIQ_KEY) is None:
        properties = set_property(properties, _UNIQ_KEY, message_id.encode("utf-8", "replace"))
    return properties, message_id
