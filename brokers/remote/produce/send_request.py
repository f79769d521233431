"""Encodes messages as a send request, and decodes the response.

Sources: protocol facts 3.1 and 3.2 (mapping), 5.5 (fields), 5.7 (batch body), 7.8 (what a broker does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from brokers.batches import Batch, Single
from brokers.remote.produce.batches import goes_alone, may_batch
from popgate.errors import BadRequest, Fault, LocalWireError, PeerWireError, PropertiesTooLarge, shown
from popgate.ids.message_id import decode_offset_message_id, make_message_id
from popgate.messages.packed_messages import PackedMessages, SentTogether, signed
from popgate.model import Message, MessageType, Sent
from popgate.naming import RETRY_PREFIX
from popgate.wire.frames.codes import RequestCode
from popgate.wire.messages.batches import BatchItem, encode_batch
from popgate.wire.messages.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    KEYS,
    LITE_TOPIC,
    LONGEST_BLOCK,
    LONGEST_IN_BATCH,
    MAX_RECONSUME_TIMES,
    PRIORITY,
    RECONSUME_TIME,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
    find_property,
    set_property,
)
from popgate.wire.messages.records import TRANSACTION_PREPARED

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_BORN_HOST, _BORN_TIMESTAMP = BORN_HOST.encode(), BORN_TIMESTAMP.encode()
_TIMER_DELIVER_MS: Final = TIMER_DELIVER_MS.encode()
_RECONSUME_TIME: Final = RECONSUME_TIME.encode()
_MAX_RECONSUME_TIMES: Final = MAX_RECONSUME_TIMES.encode()
_LARGEST_INT: Final = (1 << 31) - 1
_LARGEST_LONG: Final = (1 << 63) - 1


def complete(message: Message) -> None:
    """See to it that a message has an id, and a block of properties that names it and its time.

    Most have, from where they were checked. Raises BadRequest, PropertiesTooLarge.
    """
    properties = message.properties
    if not properties:
        properties = message.properties = _block(message)
    if not (message.message_id and (b"\x02UNIQ_KEY\x01" in properties or properties[:9] == b"UNIQ_KEY\x01")):
        named = find_property(properties, _UNIQ_KEY)
        if named is None:
            message.message_id = message.message_id or make_message_id()
            properties = set_property(properties, _UNIQ_KEY, message.message_id.encode("utf-8", "replace"))
        elif not message.message_id:
            message.message_id = named.decode("utf-8", "replace")
    if message.born_host and b"__BORNHOST\x01" not in properties:
        # A broker stores the gateway's own address as that of the sender.
        properties = set_property(properties, _BORN_HOST, _told(message.born_host))
    if message.born_ms > 0 and b"BORN_TIMESTAMP\x01" not in properties:
        # A request tells one time for all that it has.
        properties = set_property(properties, _BORN_TIMESTAMP, b"%d" % message.born_ms)
    if message.deliver_at_ms > 0 and b"TIMER_DEL" not in properties and b"DELAY\x01" not in properties:
        properties = set_property(properties, _TIMER_DELIVER_MS, b"%d" % message.deliver_at_ms)
    if len(properties) > LONGEST_BLOCK:
        raise PropertiesTooLarge(len(properties), LONGEST_BLOCK, "bytes of properties")
    message.properties = properties


def _told(text: str) -> bytes:
    return text.replace("\x01", "").replace("\x02", "").encode("utf-8", "replace") or b"?"


def _block(message: Message) -> bytes:
    message.message_id = message.message_id or make_message_id()
    named = {
        TAGS: message.tag,
        KEYS: " ".join(message.keys),
        SHARDING_KEY: message.message_group,
        PRIORITY: "" if message.priority is None else str(message.priority),
        LITE_TOPIC: message.lite_topic,
        UNIQ_KEY: message.message_id,
    }
    try:
        return encode_properties({**message.user_properties, **named})
    except LocalWireError as error:
        raise BadRequest(f"the message cannot be stored: {error}") from error


def send_request(
    messages: Sequence[Message], queue_id: int, born_ms: int
) -> tuple[RequestCode, dict[str, str], bytes]:
    """Code, fields and body of the request that stores these messages in one queue.

    The topic is sent in place of the template from which a broker may create unknown
    topics: it is no template, so a topic that is deleted at this moment is not created again.
    Raises BadRequest (PropertiesTooLarge, too) for messages that no request can carry.
    """
    first = messages[0]
    topic = first.topic
    # A broker takes the body of a request without one for none at all; in a batch it may be empty.
    many = len(messages) > 1 or not first.body
    if not first.body and len(first.properties) > LONGEST_IN_BATCH:
        raise PropertiesTooLarge(len(first.properties), LONGEST_IN_BATCH, "bytes of properties and no body")
    if not first.body and (goes_alone(first) or not may_batch(topic)):
        raise BadRequest(
            "a RocketMQ cluster stores a message without a body only if it is neither delayed nor"
            " transactional nor a retry",
            Fault.BODY_EMPTY,
        )
    sys_flag = first.sys_flag
    if first.type is MessageType.TRANSACTION:
        sys_flag |= TRANSACTION_PREPARED
    # Those of a batch are put behind those of each message, and up to 5.3.3 win over them.
    block = b"" if many else first.properties
    fields = _fields(topic, queue_id, first.producer_group, sys_flag, born_ms, first.flag, block, many=many)
    if topic.startswith(RETRY_PREFIX):
        fields["j"] = _number_in(first.properties, _RECONSUME_TIME) or str(max(first.attempt, 0))
        most = _number_in(first.properties, _MAX_RECONSUME_TIMES)
        if most:
            fields["l"] = most
    if not many:
        return RequestCode.SEND_MESSAGE_V2, fields, first.body
    try:
        body = encode_batch(
            [BatchItem(signed(message.flag), message.body, message.properties) for message in messages]
        )
    except LocalWireError as error:
        raise BadRequest(f"the messages cannot be stored: {error}") from error
    return RequestCode.SEND_BATCH_MESSAGE, fields, body


def _fields(
    topic: str,
    queue_id: int,
    producer_group: str,
    sys_flag: int,
    born_ms: int,
    flag: int = 0,
    properties: bytes = b"",
    *,
    many: bool,
) -> dict[str, str]:
    return {
        "a": producer_group or topic,
        "b": topic,
        "c": topic,
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(signed(flag)),
        "i": properties.decode("utf-8", "replace"),
        "j": "0",
        "k": "false",
        "m": "true" if many else "false",
    }


class Load(ABC):
    """What one request stores: messages of one topic, for one queue.

    `born_ms`: when it was born, as it is told once for all; 0: now. `first`: one of the messages, which in
    what decides their way are alike; None: nothing does.
    """

    __slots__ = ("born_ms", "first", "message_ids", "topic")

    def __init__(
        self, topic: str, message_ids: Sequence[str], born_ms: int, first: Message | None = None
    ) -> None:
        self.topic = topic
        self.message_ids = message_ids
        self.born_ms = born_ms
        self.first = first

    @abstractmethod
    def request(self, queue_id: int, born_ms: int) -> tuple[RequestCode, dict[str, str], bytes]:
        """As `send_request`."""

    def stored(self, broker: str, fields: Mapping[str, str]) -> Sequence[Sent]:
        """Of an answer that reports success. Raises as `sent`."""
        return sent(self.message_ids, broker, fields)


class MessagesLoad(Load):
    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        first = messages[0]
        super().__init__(first.topic, [message.message_id for message in messages], first.born_ms, first)
        self.messages = messages

    def request(self, queue_id: int, born_ms: int) -> tuple[RequestCode, dict[str, str], bytes]:
        return send_request(self.messages, queue_id, born_ms)

    def stored(self, broker: str, fields: Mapping[str, str]) -> list[Sent]:
        """With the places of the messages, which `PackedLoad` omits: no caller of those needs them."""
        return sent(self.message_ids, broker, fields, placed=True)


class PackedLoad(Load):
    """At least two messages, or one that needs a batch to be stored."""

    __slots__ = ("_ids", "packed")

    def __init__(self, packed: Sequence[PackedMessages]) -> None:
        first, alone = packed[0], len(packed) == 1
        super().__init__(
            first.topic,
            (),
            # It is told once for all: what one caller says of his is not said of those of others.
            first.first_born_ms if alone else 0,
        )
        self._ids = first.message_ids if alone else [name for each in packed for name in each.message_ids]
        self.packed = packed

    def request(self, queue_id: int, born_ms: int) -> tuple[RequestCode, dict[str, str], bytes]:
        first = self.packed[0]
        fields = _fields(self.topic, queue_id, first.producer_group, first.sys_flag, born_ms, many=True)
        return RequestCode.SEND_BATCH_MESSAGE, fields, b"".join([each.data for each in self.packed])

    def stored(self, broker: str, fields: Mapping[str, str]) -> SentTogether:
        """No object for each of them: whoever answers a client needs none."""
        queue_id, offset = _place_in(fields)
        return SentTogether(self._ids, broker, queue_id, offset)


class BatchLoad(Load):
    """A producer's own batch."""

    __slots__ = ("batch",)

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch.topic, (), batch.born_ms)
        self.batch = batch

    def request(self, queue_id: int, born_ms: int) -> tuple[RequestCode, dict[str, str], bytes]:
        batch = self.batch
        fields = _fields(batch.topic, queue_id, batch.producer_group, batch.sys_flag, born_ms, many=True)
        return RequestCode.SEND_BATCH_MESSAGE, fields, batch.data

    def stored(self, broker: str, fields: Mapping[str, str]) -> list[Sent]:
        """One entry for all of them, whose id is the ids that the broker reports."""
        return sent([fields.get("msgId", "")], broker, fields)


class SingleLoad(Load):
    """A producer's own message: the request is that of `send_request`."""

    __slots__ = ("single",)

    def __init__(self, single: Single) -> None:
        super().__init__(single.topic, (single.message_id,), single.born_ms)
        self.single = single

    def request(self, queue_id: int, born_ms: int) -> tuple[RequestCode, dict[str, str], bytes]:
        single = self.single
        fields = _fields(
            single.topic,
            queue_id,
            single.producer_group,
            single.sys_flag,
            born_ms,
            single.flag,
            single.properties,
            many=False,
        )
        return RequestCode.SEND_MESSAGE_V2, fields, single.body

    def stored(self, broker: str, fields: Mapping[str, str]) -> list[Sent]:
        return sent(self.message_ids, broker, fields, placed=True)


def sent(
    message_ids: Sequence[str], broker: str, fields: Mapping[str, str], *, placed: bool = False
) -> list[Sent]:
    """The results of one request, one for each message, with its own offset.

    `placed`: also with its place in the broker's log, as far as the response has it. The response to a batch
    has the first offset; the others follow it (protocol facts 5.7). Raises PeerWireError when the response
    has no offset.
    """
    queue_id, offset = _place_in(fields)
    results = [Sent(name, broker, queue_id, offset + at) for at, name in enumerate(message_ids)]
    if len(results) == 1:
        results[0].recall_handle = fields.get("recallHandle", "")
    if placed:
        _place(results, fields.get("msgId", ""))
    return results


def _place_in(fields: Mapping[str, str]) -> tuple[int, int]:
    """The queue and the first offset of an answer. Raises PeerWireError when it has none."""
    try:
        queue_id, offset = int(fields["queueId"]), int(fields["queueOffset"])
    except (KeyError, ValueError) as error:
        raise PeerWireError("a send was answered without its queue or offset") from error
    if not (0 <= queue_id <= _LARGEST_INT and 0 <= offset <= _LARGEST_LONG):
        place = shown(f"queue {fields['queueId']} and offset {fields['queueOffset']}")
        raise PeerWireError(f"a send was answered with {place}")
    return queue_id, offset


def _place(results: Sequence[Sent], ids: str) -> None:
    """Set the places from offset message ids, up to the first id of another kind."""
    names = ids.split(",")
    if len(names) != len(results):
        return
    for result, name in zip(results, names, strict=True):
        try:
            result.store_host, result.commit_offset = decode_offset_message_id(name)
        except ValueError:
            return


def _number_in(properties: bytes, name: bytes) -> str:
    value = find_property(properties, name)
    return value.decode() if value is not None and value.isdigit() and len(value) < 10 else ""
