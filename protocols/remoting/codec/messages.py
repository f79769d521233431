"""Decodes messages of classic producers: a header, and a block of properties that is kept unchanged.

Properties that decide how a message is processed are extracted from the block. Sources: protocol facts 3.3 to
3.5, 3.9, 5.5, 5.7 and 7.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brokers.batches import MOST_MESSAGES
from popgate.errors import BadRequest, Fault, PeerWireError, PropertiesTooLarge, shown
from popgate.groups.delay_levels import delay_ms_of
from popgate.ids.message_id import make_message_id
from popgate.messages.packed_messages import signed
from popgate.model import Message, MessageType
from popgate.naming import RETRY_PREFIX
from popgate.wire.frames.codes import SEND_ONCE, ResponseCode
from popgate.wire.messages.batches import BatchItem, decode_batch
from popgate.wire.messages.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    KEYS,
    LITE_TOPIC,
    LONGEST_BLOCK,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    set_property,
    split_properties,
)
from popgate.wire.messages.records import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS
from processors.limits import Limits
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import flag, long_number, number, text

LONG: Final = {
    "group": "producerGroup",
    "topic": "topic",
    "queue": "queueId",
    "sys_flag": "sysFlag",
    "born": "bornTimestamp",
    "flag": "flag",
    "properties": "properties",
    "reconsumed": "reconsumeTimes",
    "most": "maxReconsumeTimes",
    "batch": "batch",
    "broker": "bname",
    "once": SEND_ONCE,
}
"""The names of the fields in SEND_MESSAGE."""
SHORT: Final = {
    "group": "a",
    "topic": "b",
    "queue": "e",
    "sys_flag": "f",
    "born": "g",
    "flag": "h",
    "properties": "i",
    "reconsumed": "j",
    "most": "l",
    "batch": "m",
    "broker": "n",
    "once": SEND_ONCE,
}
"""Those in SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

_KEPT_FLAGS: Final = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
"""Bits of sysFlag that are the sender's to say; the others are the store's."""
_UNIQ_KEY: Final = UNIQ_KEY.encode()
_TAGS, _KEYS, _SHARDING_KEY = TAGS.encode(), KEYS.encode(), SHARDING_KEY.encode()
_TRAN_MSG, _DELAY, _PRIORITY = TRAN_MSG.encode(), DELAY.encode(), PRIORITY.encode()
_DELIVER_MS, _DELAY_SEC, _DELAY_MS = (
    name.encode() for name in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
)
_TIMERS: Final = (b"TIMER_DEL", b"DELAY\x01")
_WAIT = WAIT.encode()
_LITE_TOPIC, _IMMUNITY = LITE_TOPIC.encode(), CHECK_IMMUNITY_TIME_IN_SECONDS.encode()
_RESERVED: Final = frozenset(name.encode() for name in RESERVED)
_LARGEST_LONG: Final = (1 << 63) - 1


@dataclass(slots=True, init=False)
class Head:
    """The header of a send. `queue_id` below 0: any. `most_reconsumed` None: the group's own number."""

    group: str
    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: bytes
    reconsumed: int
    most_reconsumed: int | None
    batch: bool
    broker: str
    once: bool
    """A message whose id was sent lately is the same message."""

    # Written out, because mypyc does not compile what a dataclass makes: there is one for every send.
    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        reconsumed: int,
        most_reconsumed: int | None,
        batch: bool,
        broker: str,
        once: bool,
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.flag = flag
        self.properties = properties
        self.reconsumed = reconsumed
        self.most_reconsumed = most_reconsumed
        self.batch = batch
        self.broker = broker
        self.once = once

    @classmethod
    def read(cls, fields: Mapping[str, str], names: Mapping[str, str]) -> Head:
        """Raises BadRequest."""
        return cls(
            fields.get(names["group"], ""),
            text(fields, names["topic"]),
            number(fields, names["queue"]),
            number(fields, names["sys_flag"], 0) & _KEPT_FLAGS,
            max(long_number(fields, names["born"], 0), 0),
            signed(number(fields, names["flag"], 0)),
            fields.get(names["properties"], "").encode("utf-8", "replace"),
            max(number(fields, names["reconsumed"], 0), 0),
            number(fields, names["most"]) if names["most"] in fields else None,
            flag(fields, names["batch"]),
            fields.get(names["broker"], ""),
            flag(fields, names["once"]),
        )


def message_in(
    head: Head, item: BatchItem, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> Message:
    """One message of a send, of type TRANSACTION or with what makes its type.

    Raises BadRequest (what a property says cannot be), PropertiesTooLarge.
    """
    block = item.properties
    if len(block) > LONGEST_BLOCK:
        raise PropertiesTooLarge(len(block), LONGEST_BLOCK, "bytes of properties")
    properties = split_properties(block)
    large = len(block) > limits.max_properties_bytes or len(properties) > limits.max_properties
    if large and not topic.startswith(RETRY_PREFIX):  # what was taken once may come again
        _check_sizes(properties, limits)
    unique = properties.get(_UNIQ_KEY)
    if unique is None:
        message_id = make_message_id()
        block = set_property(block, _UNIQ_KEY, message_id.encode())
    else:
        message_id = unique.decode("utf-8", "replace")
    keys = properties.get(_KEYS)
    message = Message(
        topic,
        item.body,
        message_id=message_id,
        tag=_text(properties, _TAGS),
        keys=tuple(key for key in keys.decode("utf-8", "replace").split(" ") if key) if keys else (),
        message_group=_text(properties, _SHARDING_KEY),
        born_ms=head.born_ms or now_ms,
        born_host=born_host,
        sys_flag=head.sys_flag,
        flag=item.flag,
        attempt=head.reconsumed,
        producer_group=head.group,
        properties=block,
        broker=head.broker,
        queue_id=max(head.queue_id, -1),
        # RocketMQ's clients give a message its id when it is first sent; who sends the same object twice
        # sends two messages. Who means one says so.
        may_come_again=not head.once or topic.startswith(RETRY_PREFIX),
    )
    if any(timer in block for timer in _TIMERS):
        message.deliver_at_ms = _deliver_at(properties, now_ms)
    if _is_true(properties.get(_TRAN_MSG)) and not (head.reconsumed and message.deliver_at_ms):
        message.type = MessageType.TRANSACTION
        message.deliver_at_ms = 0
        message.recovery_ms = _number(properties, _IMMUNITY) * 1000
    if _PRIORITY in properties and not (
        message.message_group or message.deliver_at_ms or message.type is MessageType.TRANSACTION
    ):
        # Beside those it counts for nothing: RocketMQ 5.5.0, SendMessageProcessor.sendMessage.
        message.priority = _number(properties, _PRIORITY)
    if _LITE_TOPIC in properties:
        message.lite_topic = _text(properties, _LITE_TOPIC)
    return message


def items_in(head: Head, body: bytes) -> list[BatchItem]:
    """The messages of a batch.

    Raises BadRequest for a body that is none, or has more messages than brokers take (`MOST_MESSAGES`), and
    Refused for what no batch may hold.
    """
    try:
        items = decode_batch(body, MOST_MESSAGES)
    except PeerWireError as error:
        raise BadRequest(f"the batch cannot be read: {error}", Fault.MESSAGE_CORRUPTED) from error
    if not items:
        raise BadRequest("the batch has no message", Fault.MESSAGE_CORRUPTED)
    for item in items:
        if any(timer in item.properties for timer in _TIMERS) or b"TRAN_MSG\x01" in item.properties:
            properties = split_properties(item.properties)
            for name in (_DELAY, _DELIVER_MS, _DELAY_SEC, _DELAY_MS, _TRAN_MSG):
                if properties.get(name, b"0") not in (b"0", b"false"):
                    raise Refused(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"a message of a batch has the property {name.decode()}, which none may have",
                    )
    shared = shared_properties(head)
    if not shared:
        return items
    return [BatchItem(item.flag, item.body, _with_shared(shared, item.properties)) for item in items]


def shared_properties(head: Head) -> dict[bytes, bytes]:
    """Those that the header of a batch gives to all of its messages.

    Without the batch's own id, which Java clients from 5.0.0 on give it, and without WAIT=true, which asks
    for what brokers do anyway.
    """
    if not head.properties:
        return {}
    shared = split_properties(head.properties)
    shared.pop(_UNIQ_KEY, None)
    if shared.get(_WAIT, b"").lower() == b"true":
        del shared[_WAIT]
    return shared


def _with_shared(shared: Mapping[bytes, bytes], block: bytes) -> bytes:
    """A message's properties, with the shared ones that it does not have itself in front of them."""
    own = split_properties(block)
    return (
        b"".join([b"%b\x01%b\x02" % (name, value) for name, value in shared.items() if name not in own])
        + block
    )


def _deliver_at(properties: Mapping[bytes, bytes], now_ms: int) -> int:
    """When it is due, in wall ms; 0: at once. A level counts before all else (protocol facts 3.9)."""
    level = _number(properties, _DELAY)
    if level > 0:
        return now_ms + delay_ms_of(level)
    for name, unit in ((_DELAY_SEC, 1000), (_DELAY_MS, 1)):
        if name in properties:
            return min(now_ms + _number(properties, name) * unit, _LARGEST_LONG)
    return _number(properties, _DELIVER_MS)


def _check_sizes(properties: Mapping[bytes, bytes], limits: Limits) -> None:
    """As over gRPC: what the user gave, its tag and its keys."""
    user = {name: value for name, value in properties.items() if name not in _RESERVED}
    if len(user) > limits.max_properties:
        raise PropertiesTooLarge(len(user), limits.max_properties, "user properties")
    size = sum([len(name) + len(value) for name, value in user.items()])
    size += len(properties.get(_TAGS, b"")) + len(properties.get(_KEYS, b""))
    if size > limits.max_properties_bytes:
        raise PropertiesTooLarge(
            size, limits.max_properties_bytes, "bytes of user properties, tag and keys together"
        )


def _text(properties: Mapping[bytes, bytes], name: bytes) -> str:
    return properties.get(name, b"").decode("utf-8", "replace")


def _is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"


def _number(properties: Mapping[bytes, bytes], name: bytes) -> int:
    """A whole number from 0 on; below it is 0. Raises BadRequest."""
    value = properties.get(name)
    if value is None:
        return 0
    digits = value[1:] if value[:1] in (b"-", b"+") else value
    if not digits.isdigit() or len(digits) > 19:
        text = shown(value.decode("utf-8", "replace"))
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"the property {name.decode()} is no whole number: {text}"
        )
    return min(max(int(value), 0), _LARGEST_LONG)
