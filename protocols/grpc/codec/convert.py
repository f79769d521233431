"""Messages and requests between RocketMQ's protobuf and the domain.

Sources: protocol facts 1.10, 3.1, 3.2, 3.5, 3.6 and pitfalls 28 to 36.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha1

from popgate.context import Context
from popgate.errors import BadRequest, Fault, IllegalFilter, IllegalTopic, shown
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
from popgate.naming import check_topic
from popgate.pb import definition_pb2 as pb
from popgate.pb.duration_pb2 import Duration
from popgate.pb.service_pb2 import ReceiveMessageRequest, SendResultEntry
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.checksum import crc32
from processors.requests import Receive
from protocols.grpc.codec.client_quirks import types_known
from protocols.grpc.codec.errors import OK
from protocols.grpc.codec.received_message import LATEST_MS, encode_message, md5_text

_COMPRESSED = 0x1
"""The bit of `sys_flag`. Source: protocol facts 3.8."""
_LONGEST_NAMESPACE = 255
_MOST_ADDRESSES = 1024
"""In a request, which is kept as long as it waits: one of two bytes takes 24 times that in memory."""

_TYPES_OUT = {
    MessageType.NORMAL: pb.NORMAL,
    MessageType.FIFO: pb.FIFO,
    MessageType.DELAY: pb.DELAY,
    MessageType.TRANSACTION: pb.TRANSACTION,
    MessageType.LITE: pb.LITE,
    MessageType.PRIORITY: pb.PRIORITY,
}

_TYPES = frozenset(pb.MessageType.values())
_TRANSACTION, _PRIORITY, _GZIP = int(pb.TRANSACTION), int(pb.PRIORITY), int(pb.GZIP)
_ENCODINGS = frozenset(pb.Encoding.values())

_FILTERS = {
    int(pb.FILTER_TYPE_UNSPECIFIED): FilterKind.TAG,
    int(pb.TAG): FilterKind.TAG,
    int(pb.SQL): FilterKind.SQL92,
}
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
    kind, encoding = system.message_type, system.body_encoding
    if kind not in _TYPES or encoding not in _ENCODINGS:
        raise _unknown(system)
    has = system.HasField
    if has("body_digest"):
        _check_digest(body, system.body_digest)
    # Each look into a protobuf message costs: every field is read once, lists only where there is one.
    born = system.born_timestamp
    born_ms = born.seconds * 1000 - (-born.nanos // 1_000_000)
    topic = message.topic.name
    group = system.message_group
    keys = system.keys
    user = message.user_properties
    result = Message(
        topic,
        body,
        system.message_id,
        MessageType.FIFO if group else MessageType.NORMAL,
        system.tag,
        () if not keys else (keys[0],) if len(keys) == 1 else tuple(keys),
        group,
        0,
        0,
        {key: user[key] for key in user} if user else {},
        system.trace_context,
        born_ms if 0 < born_ms <= LATEST_MS else now_ms,
        system.born_host or context.peer,
        _COMPRESSED if encoding == _GZIP else 0,
        0,
        0,
        topic,
    )
    if has("delivery_timestamp"):
        result.type = MessageType.DELAY
        # 0 would mean that no time was given.
        result.deliver_at_ms = max(time_ms(system.delivery_timestamp), 1)
    if kind == _TRANSACTION:
        result.type = MessageType.TRANSACTION
        if has("orphaned_transaction_recovery_duration"):
            result.recovery_ms = millis_of(system.orphaned_transaction_recovery_duration)
    if has("lite_topic"):
        # Refused by the rule for names, not taken for a message without one.
        result.lite_topic = system.lite_topic or " "
    if system.priority or (kind == _PRIORITY and has("priority")):
        # Of a message that does not say that it is one of PRIORITY, 0 is what is told for none.
        result.priority = system.priority
    return result


def _unknown(system: pb.SystemProperties) -> BadRequest:
    """A newer client's words: taken for others, they would reach consumers as what they are not."""
    if system.message_type not in _TYPES:
        return BadRequest(f"the message type {system.message_type} is not known here")
    return BadRequest(f"the body encoding {system.body_encoding} is not known here", Fault.MESSAGE_CORRUPTED)


def _check_digest(body: bytes, digest: pb.Digest) -> None:
    """Compare a body, as it was sent, with what the sender says of it."""
    given = digest.checksum.strip().upper()
    if not given:
        return
    match digest.type:
        case pb.MD5:
            actual = md5_text(body)
        case pb.SHA1:
            actual = sha1(body, usedforsecurity=False).hexdigest().upper()
        case pb.CRC32:
            # Clients differ in leading zeros.
            actual = f"{crc32(body):X}"
            given = given.lstrip("0") or "0"
        case _:
            return
    if actual != given:
        raise BadRequest(
            f"the body of {len(body)} bytes has the digest {actual}, not {shown(given, 40)} as it says",
            Fault.MESSAGE_CORRUPTED,
        )


def check_one_topic(topics: Sequence[pb.Resource]) -> None:
    """Raises IllegalTopic, BadRequest MESSAGE_CORRUPTED. Names alone are not enough: namespaces count."""
    first = topics[0]
    check_topic(first.name)
    for topic in topics:
        if topic != first:
            raise BadRequest(
                f"the messages of one send go to one topic, these go to {shown(_full(first))}"
                f" and {shown(_full(topic))}",
                Fault.MESSAGE_CORRUPTED,
                "topic in message is not same",
            )


def _full(topic: pb.Resource) -> str:
    return f"{topic.resource_namespace}%{topic.name}" if topic.resource_namespace else topic.name


def tell_sent(entry: SendResultEntry, sent: Sent) -> None:
    """Fill in the send receipt of one message; its id is that of the sender (pitfall 28)."""
    entry.status.CopyFrom(OK)
    entry.message_id = sent.message_id
    entry.offset = sent.offset
    if sent.transaction_id:
        entry.transaction_id = sent.transaction_id
    if sent.recall_handle:
        entry.recall_handle = sent.recall_handle


def receive_in(request: ReceiveMessageRequest) -> Receive:
    """A request for messages. Raises IllegalTopic, IllegalFilter, BadRequest."""
    # Each look into a protobuf message costs: everything is read once.
    queue, passing, has = request.message_queue, request.filter_expression, request.HasField
    topic, most = queue.topic, request.batch_size
    check_queue(queue)
    return Receive(
        topic.name,
        request.group.name,
        filter_kind(passing),
        passing.expression,
        most if most > 0 else 32,
        millis_of(request.invisible_duration) if has("invisible_duration") else None,
        request.auto_renew,
        millis_of(request.long_polling_timeout) / 1000 if has("long_polling_timeout") else None,
        request.attempt_id,
        queue.broker.name,
    )


def filter_kind(expression: pb.FilterExpression) -> FilterKind:
    """One that does not say what it is filters by tag. Source: protocol facts 2.3. Raises IllegalFilter."""
    kind = _FILTERS.get(expression.type)
    if kind is None:
        raise IllegalFilter(expression.expression, f"there is no filter type {expression.type}")
    return kind


def message_out(stored: StoredMessage, topic: pb.Resource | None = None) -> pb.Message:
    """A message as a protobuf object, parsed from `received_message.encode_message`."""
    return pb.Message.FromString(encode_message(stored, topic))


def types_out(route: Route, context: Context, *, lite: bool) -> list[pb.MessageType]:
    """The message types of a route that the client can read; `lite`: the broker has lite topics."""
    types: Iterable[MessageType] = route.message_types
    if not types:
        types = [kind for kind in MessageType if lite or kind is not MessageType.LITE]
    return [_TYPES_OUT[kind] for kind in types_known(context, types)]


def queue_out(
    queue: Queue, types: Iterable[pb.MessageType], topic: pb.Resource, endpoints: pb.Endpoints
) -> pb.MessageQueue:
    """A queue of a route; the topic is the client's own words for it, namespace included.

    `types`: what `types_out` gives for the route. Its broker has id 0: clients use no others (pitfall 19).
    Raises IllegalTopic.
    """
    check_namespace(topic)
    return pb.MessageQueue(
        # Not the resource itself: it may have fields that are not known, and they may be long.
        topic=pb.Resource(name=topic.name, resource_namespace=topic.resource_namespace),
        id=queue.queue_id,
        permission=_PERMISSIONS_OUT[queue.permission],
        broker=pb.Broker(name=queue.broker, id=0, endpoints=endpoints),
        accept_message_types=types,
    )


def check_queue(queue: pb.MessageQueue) -> None:
    """Raises IllegalTopic for a namespace, BadRequest for endpoints, that are longer than they can be."""
    check_namespace(queue.topic)
    check_endpoints(queue.broker.endpoints)


def check_endpoints(endpoints: pb.Endpoints) -> None:
    """Raises BadRequest ILLEGAL_ACCESS_POINT."""
    count = len(endpoints.addresses)
    if count > _MOST_ADDRESSES:
        raise BadRequest(
            f"the endpoints have {count} addresses, the limit is {_MOST_ADDRESSES}",
            Fault.ILLEGAL_ACCESS_POINT,
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
