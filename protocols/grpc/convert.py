"""Messages and requests between RocketMQ's protobuf and the domain.

Sources: protocol facts 1.10, 3.1, 3.2, 3.5, 3.6 and pitfalls 28 to 36.
"""

from __future__ import annotations

import zlib
from hashlib import md5, sha1

from popgate.context import Context
from popgate.errors import BadRequest, Fault, IllegalFilter, IllegalTopic, PeerWireError, shown
from popgate.message_id import encode_offset_message_id
from popgate.model import (
    FilterKind,
    Message,
    MessageType,
    Permission,
    Queue,
    Route,
    Sent,
    StoredMessage,
)
from popgate.wire import properties as names
from popgate.wire.compression import decompress
from popgate.wire.properties import RESERVED, decode_properties
from processors.requests import Receive
from protocols.grpc.errors import OK
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb.duration_pb2 import Duration
from protocols.grpc.pb.service_pb2 import ReceiveMessageRequest, SendResultEntry
from protocols.grpc.pb.timestamp_pb2 import Timestamp

_COMPRESSED = 0x1
"""The bit of `sys_flag`. Source: protocol facts 3.8."""
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_BODY = 64 * 1024 * 1024
"""Bytes that a body may unpack to; a larger one is delivered packed."""

_LONGEST_NAMESPACE = 255
_LATEST_MS = 253_402_300_799_999
"""The last millisecond that a protobuf Timestamp can tell: the end of the year 9999."""

_HIDDEN = RESERVED | {
    names.SHARDING_KEY,
    names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.INNER_NUM,
    names.INNER_BASE,
    names.INNER_MULTI_DISPATCH,
}
"""Properties that are no user's: fields of their own, or the system's business (pitfall 34)."""

_DELAYED = frozenset((names.TIMER_DELIVER_MS, names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS))

_TYPES_OUT = {
    MessageType.NORMAL: pb.NORMAL,
    MessageType.FIFO: pb.FIFO,
    MessageType.DELAY: pb.DELAY,
    MessageType.TRANSACTION: pb.TRANSACTION,
    MessageType.LITE: pb.LITE,
    MessageType.PRIORITY: pb.PRIORITY,
}
_TYPES_TOLD = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
"""Of a topic that takes every type: older clients fail on types that they do not know."""

_TYPES = frozenset(pb.MessageType.values())
_ENCODINGS = frozenset(pb.Encoding.values())

_PERMISSIONS_OUT = {
    Permission.NONE: pb.NONE,
    Permission.READ: pb.READ,
    Permission.WRITE: pb.WRITE,
    Permission.READ_WRITE: pb.READ_WRITE,
}


def message_in(message: pb.Message, context: Context, now_ms: int) -> Message:
    """A message to send. Raises BadRequest (MESSAGE_CORRUPTED; a type that is not known).

    Its type follows from its fields; what it says of itself counts for transactions only. A message
    that does not say when it was born, or says what cannot be, was born now.
    """
    system = message.system_properties
    body = message.body
    if system.message_type not in _TYPES or system.body_encoding not in _ENCODINGS:
        raise _unknown(system)
    if system.HasField("body_digest"):
        _check_digest(body, system.body_digest)
    born_ms = time_ms(system.born_timestamp)
    result = Message(
        topic=message.topic.name,
        body=body,
        message_id=system.message_id,
        tag=system.tag,
        keys=tuple(system.keys),
        message_group=system.message_group,
        user_properties=dict(message.user_properties),
        trace_context=system.trace_context,
        born_ms=born_ms if 0 < born_ms <= _LATEST_MS else now_ms,
        born_host=system.born_host or context.peer,
        sys_flag=_COMPRESSED if system.body_encoding == pb.GZIP else 0,
        producer_group=message.topic.name,
    )
    if system.message_type == pb.TRANSACTION:
        result.type = MessageType.TRANSACTION
        if system.HasField("orphaned_transaction_recovery_duration"):
            result.recovery_ms = millis_of(system.orphaned_transaction_recovery_duration)
    elif system.HasField("delivery_timestamp"):
        result.type = MessageType.DELAY
    elif result.message_group:
        result.type = MessageType.FIFO
    if system.HasField("lite_topic"):
        # Refused by the rule for names, not taken for a message without one.
        result.lite_topic = system.lite_topic or " "
    if system.priority or (system.message_type == pb.PRIORITY and system.HasField("priority")):
        # Of a message that does not say that it is one of PRIORITY, 0 is what is told for none.
        result.priority = system.priority
    if system.HasField("delivery_timestamp"):
        # 0 would mean that no time was given.
        result.deliver_at_ms = max(time_ms(system.delivery_timestamp), 1)
    return result


def _unknown(system: pb.SystemProperties) -> BadRequest:
    """A newer client's words: taken for others, they would reach consumers as what they are not."""
    if system.message_type not in _TYPES:
        return BadRequest(f"the message type {system.message_type} is not known here")
    return BadRequest(f"the body encoding {system.body_encoding} is not known here", Fault.MESSAGE_CORRUPTED)


def _check_digest(body: bytes, digest: pb.Digest) -> None:
    """Compare a body, as it was sent, with what the sender says of it."""
    told = digest.checksum.strip().upper()
    if not told:
        return
    match digest.type:
        case pb.MD5:
            actual = md5_text(body)
        case pb.SHA1:
            actual = sha1(body, usedforsecurity=False).hexdigest().upper()
        case pb.CRC32:
            # Clients differ in leading zeros.
            actual = f"{zlib.crc32(body):X}"
            told = told.lstrip("0") or "0"
        case _:
            return
    if actual != told:
        raise BadRequest(
            f"the body of {len(body)} bytes has the digest {actual}, not {shown(told, 40)} as it says",
            Fault.MESSAGE_CORRUPTED,
        )


def sent_out(sent: Sent) -> SendResultEntry:
    """The receipt of one message; its id is the one that the sender gave it (pitfall 28)."""
    return SendResultEntry(
        status=OK,
        message_id=sent.message_id,
        transaction_id=sent.transaction_id,
        offset=sent.offset,
        recall_handle=sent.recall_handle,
    )


def receive_in(request: ReceiveMessageRequest) -> Receive:
    """A request for messages."""
    queue = request.message_queue
    check_namespace(queue.topic)
    return Receive(
        topic=queue.topic.name,
        group=request.group.name,
        filter_kind=filter_kind(request.filter_expression),
        filter_expression=request.filter_expression.expression,
        max_messages=request.batch_size if request.batch_size > 0 else 32,
        invisible_ms=millis_of(request.invisible_duration)
        if request.HasField("invisible_duration")
        else None,
        auto_renew=request.auto_renew,
        wait_s=millis_of(request.long_polling_timeout) / 1000
        if request.HasField("long_polling_timeout")
        else None,
        attempt_id=request.attempt_id,
        broker=queue.broker.name,
    )


def filter_kind(expression: pb.FilterExpression) -> FilterKind:
    """One that does not say what it is filters by tag. Source: protocol facts 2.3. Raises IllegalFilter."""
    if expression.type not in (pb.FILTER_TYPE_UNSPECIFIED, pb.TAG, pb.SQL):
        raise IllegalFilter(expression.expression, f"there is no filter type {expression.type}")
    return FilterKind.SQL92 if expression.type == pb.SQL else FilterKind.TAG


def message_out(stored: StoredMessage, topic: pb.Resource | None = None) -> pb.Message:
    """A message as it is delivered, or as its producer is asked about it.

    `topic` is the client's own word for the topic; it gets that back, with its namespace.
    """
    found = decode_properties(stored.properties)
    body, encoding = _body_out(stored)
    # Filled in place: giving parts to constructors copies each of them, for every message.
    message = pb.Message(body=body)
    message.topic.name = stored.topic
    if topic is not None and topic.resource_namespace and topic.name == stored.topic:
        message.topic.resource_namespace = topic.resource_namespace
    system = message.system_properties
    if keys := found.get(names.KEYS):
        system.keys.extend([key for key in keys.split(" ") if key])
    system.message_id = found.get(names.UNIQ_KEY) or encode_offset_message_id(
        stored.store_host, stored.commit_offset
    )
    digest = system.body_digest
    digest.type = pb.MD5
    digest.checksum = md5_text(body)
    system.body_encoding = encoding
    system.message_type = _type_of(found)
    _tell_time(system.born_timestamp, stored.born_ms)
    system.born_host = found.get(names.BORN_HOST) or stored.born_host.rpartition(":")[0].strip("[]")
    _tell_time(system.store_timestamp, stored.store_ms)
    system.store_host = stored.store_host
    system.queue_id = stored.queue_id
    system.queue_offset = stored.offset
    system.delivery_attempt = max(stored.attempt, 1)
    if (tag := found.get(names.TAGS)) is not None:
        system.tag = tag
    if (message_group := found.get(names.SHARDING_KEY)) is not None:
        system.message_group = message_group
    if (trace := found.get(names.TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    if (lite_topic := found.get(names.LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    priority = found.get(names.PRIORITY)
    if priority is not None and len(priority) < 10 and priority.isascii() and priority.isdigit():
        system.priority = int(priority)
    due = found.get(names.TIMER_DELIVER_MS)
    if due is not None and len(due) < 16 and due.isascii() and due.isdigit():
        _tell_time(system.delivery_timestamp, int(due))
    if stored.receipt:
        system.receipt_handle = stored.receipt
    origin = found.get(names.DLQ_ORIGIN_TOPIC)
    if origin is not None and (origin_id := found.get(names.DLQ_ORIGIN_MESSAGE_ID)) is not None:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = origin_id
    properties = message.user_properties
    for key, value in found.items():
        if key not in _HIDDEN:
            properties[key] = value
    return message


def _body_out(stored: StoredMessage) -> tuple[bytes, pb.Encoding]:
    """The body and how it is packed.

    GZIP is passed as it is. Other packings are undone: remoting producers, and the C++ client under
    the mark of GZIP, use ones that most clients cannot open (pitfall 31). What cannot be unpacked
    is passed as it is, for the client to decide.
    """
    if not stored.sys_flag & _COMPRESSED or not stored.body:
        return stored.body, pb.IDENTITY
    if stored.body.startswith(_GZIP_MAGIC):
        return stored.body, pb.GZIP
    try:
        return decompress(stored.body, _LARGEST_BODY), pb.IDENTITY
    except PeerWireError:
        return stored.body, pb.GZIP


def md5_text(body: bytes) -> str:
    """In upper case: clients compare it as text (pitfall 29)."""
    return md5(body, usedforsecurity=False).hexdigest().upper()


def _type_of(found: dict[str, str]) -> pb.MessageType:
    if found.get(names.TRAN_MSG) == "true":
        return pb.TRANSACTION
    if not _DELAYED.isdisjoint(found):
        return pb.DELAY
    if names.SHARDING_KEY in found:
        return pb.FIFO
    if names.PRIORITY in found:
        return pb.PRIORITY
    if names.LITE_TOPIC in found:
        return pb.LITE
    return pb.NORMAL


def queue_out(queue: Queue, route: Route, topic: pb.Resource, endpoints: pb.Endpoints) -> pb.MessageQueue:
    """A queue of a route; the topic is the client's own words for it, namespace included.

    Its broker has id 0: clients use no others (pitfall 19). Raises IllegalTopic.
    """
    check_namespace(topic)
    return pb.MessageQueue(
        # Not the resource itself: it may have fields that are not known, and they may be long.
        topic=pb.Resource(name=topic.name, resource_namespace=topic.resource_namespace),
        id=queue.queue_id,
        permission=_PERMISSIONS_OUT[queue.permission],
        broker=pb.Broker(name=queue.broker, id=0, endpoints=endpoints),
        accept_message_types=[_TYPES_OUT[t] for t in route.message_types or _TYPES_TOLD],
    )


def check_namespace(topic: pb.Resource) -> None:
    """Raises IllegalTopic for a namespace that is longer than one can be: it is echoed, and often."""
    length = len(topic.resource_namespace)
    if length > _LONGEST_NAMESPACE:
        raise IllegalTopic(
            topic.name, f"its namespace has {length} characters, the limit is {_LONGEST_NAMESPACE}"
        )


def millis_of(duration: Duration) -> int:
    """Milliseconds of a duration; a part of one counts as a whole, so that 1 ns does not become 0."""
    return duration.seconds * 1000 - (-duration.nanos // 1_000_000)


def time_ms(time: Timestamp) -> int:
    """Milliseconds since the epoch; a time that has not come yet stays so."""
    return time.seconds * 1000 - (-time.nanos // 1_000_000)


def _tell_time(time: Timestamp, ms: int) -> None:
    # Other doors let through times that no Timestamp can tell; some clients fail on those.
    seconds, rest = divmod(min(max(ms, 0), _LATEST_MS), 1000)
    time.seconds = seconds
    time.nanos = rest * 1_000_000
