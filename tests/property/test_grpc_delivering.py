"""Delivered messages, encoded by hand, against the same spelled out with the objects of protobuf."""

from __future__ import annotations

import zlib
from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from popgate.errors import IllegalReceipt, PeerWireError
from popgate.ids.message_id import encode_offset_message_id
from popgate.ids.receipt import parse_receipt
from popgate.model import StoredMessage
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.messages import properties as names
from popgate.wire.messages.compression import decompress
from popgate.wire.messages.properties import RESERVED, decode_properties
from protocols.grpc.codec.convert import message_out
from protocols.grpc.codec.handles import marked
from protocols.grpc.codec.received_message import LATEST_MS, encode_received, md5_text, varint

_HIDDEN = RESERVED | {
    *(names.SHARDING_KEY, names.TRACE_CONTEXT, names.TRANSACTION_ID, names.TRANSACTION_CHECK_TIMES),
    *(names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH),
}
_DELAYED = frozenset((names.TIMER_DELIVER_MS, names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS))

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
KNOWN = st.sampled_from(sorted({*_HIDDEN, *RESERVED, "REDRIVE_COUNT"}))
VALUES = (
    st.sampled_from(
        ["true", "0", "7", "-3", "\u0663", "a b  c", "12345678901", "2147483647", "2147483648", "9" * 20]
    )
    | TEXT
)
PAIRS = st.lists(st.tuples(KNOWN | TEXT, VALUES), max_size=8)
BLOCKS = PAIRS.map(lambda pairs: "".join(f"{k}\x01{v}\x02" for k, v in pairs).encode()) | st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"\xff", b"\xe4\xb8"]),
    max_size=20,
).map(b"".join)
BODIES = st.binary(max_size=40) | st.sampled_from(
    [b"x" * 200, b"y" * 20_000, zlib.compress(b"hello"), b"\x1f\x8bgzip", b"\x28\xb5\x2f\xfdno"]
)
HOSTS = st.sampled_from(["10.0.0.1:5", "[::1]:10911", "", "nowhere", "127.0.0.1:-1"])


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    return StoredMessage(
        topic=draw(st.sampled_from(["Orders", "größe", ""])),
        broker="broker-a",
        queue_id=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        offset=draw(LONG | st.integers(0, 3000)),
        commit_offset=draw(LONG),
        sys_flag=draw(st.sampled_from([0, 1, 0x101, 0x201, 0x301])),
        flag=0,
        born_ms=draw(LONG | st.integers(0, 2_000_000_000_000)),
        born_host=draw(HOSTS | TEXT),
        store_ms=draw(LONG | st.integers(0, 2_000_000_000_000)),
        store_host=draw(HOSTS),
        body=draw(BODIES),
        properties=draw(BLOCKS),
        attempt=draw(st.integers(-1, 1000)),
        receipt=draw(st.sampled_from(["", "7 1700000000000 60000 0 0 broker-a 3 7 123", "r" * 300])),
        reconsume_times=draw(st.integers(-1, 1000)),
    )


def plainly(stored: StoredMessage, topic: pb.Resource | None) -> pb.Message:
    """What `encode_message` tells, field by field."""
    found = decode_properties(stored.properties)
    body, encoding = _body_out(stored)
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
    system.delivery_attempt = max(stored.attempt or stored.reconsume_times + 1, 1)
    if (tag := found.get(names.TAGS)) is not None:
        system.tag = tag
    if (message_group := found.get(names.SHARDING_KEY)) is not None:
        system.message_group = message_group
    if (trace := found.get(names.TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    if (lite_topic := found.get(names.LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    priority = found.get(names.PRIORITY)
    is_number = priority is not None and len(priority) <= 10 and priority.isascii() and priority.isdigit()
    if priority is not None and is_number and int(priority) < 1 << 31:
        system.priority = int(priority)
    due = found.get(names.TIMER_DELIVER_MS)
    if due is not None and len(due) < 16 and due.isascii() and due.isdigit():
        _tell_time(system.delivery_timestamp, int(due))
    if stored.receipt:
        of_lite_topic = None if lite_topic is None else lite_topic.encode()
        system.receipt_handle = marked(stored.receipt.encode(), system.message_id.encode(), of_lite_topic)
        with suppress(IllegalReceipt):
            system.invisible_duration.FromMilliseconds(parse_receipt(stored.receipt).invisible_ms)
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
    if not stored.sys_flag & 1 or not stored.body:
        return stored.body, pb.IDENTITY
    if stored.body.startswith(b"\x1f\x8b"):
        return stored.body, pb.GZIP
    try:
        return decompress(stored.body, 1 << 26), pb.IDENTITY
    except PeerWireError:
        return stored.body, pb.GZIP


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


def _tell_time(time: Timestamp, ms: int) -> None:
    seconds, rest = divmod(min(max(ms, 0), LATEST_MS), 1000)
    time.seconds = seconds
    time.nanos = rest * 1_000_000


PLAIN = StoredMessage("Orders", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"", b"")


@given(messages(), st.sampled_from(["", "Orders", "other"]), st.sampled_from(["", "ns"]))
@example(PLAIN, "Orders", "ns")
def test_the_bytes_of_a_delivery_are_those_of_its_fields(
    stored: StoredMessage, name: str, namespace: str
) -> None:
    topic = pb.Resource(name=name, resource_namespace=namespace)
    expected = plainly(stored, topic)
    answer = rpc.ReceiveMessageResponse.FromString(encode_received(stored, topic))
    assert answer == rpc.ReceiveMessageResponse(message=expected)
    assert message_out(stored) == plainly(stored, None)


@given(LONG)
def test_a_varint_is_the_one_of_protobuf(number: int) -> None:
    message = pb.SystemProperties.FromString(b"\x70" + varint(number))
    assert message.queue_offset == number
