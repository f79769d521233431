"""Encodes delivered messages from their stored form straight to the bytes of RocketMQ's protobuf.

Building protobuf objects field by field costs several times as much. Field numbers are those of
`definition.proto`; callers that need the object parse the bytes (`convert.message_out`), so that there is
one encoding. Sources: protocol facts 1.10, 3.5, 3.6 and pitfalls 28 to 36.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from typing import Final

from popgate.errors import PeerWireError, Unsupported
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import StoredMessage
from popgate.pb import definition_pb2 as pb
from popgate.wire.messages import properties as names
from popgate.wire.messages.compression import borne, decompress
from popgate.wire.messages.properties import RESERVED, split_properties
from protocols.grpc.codec.handles import marked

try:
    # That of hashlib is OpenSSL's, which takes as long to begin as this one for all of a short body.
    from _md5 import md5 as short_md5  # type: ignore[import-not-found]
except ImportError:
    short_md5 = md5

_COMPRESSED: Final = 0x1
"""The bit of `sys_flag`. Source: protocol facts 3.8."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_SHORT_BODY: Final = 1024
_LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes that a body may unpack to; a larger one, and a bomb, are delivered packed."""
LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond that a protobuf Timestamp can tell: the end of the year 9999."""
_U64: Final = (1 << 64) - 1
_LARGEST_INT: Final = (1 << 31) - 1

HIDDEN: Final = frozenset(
    name.encode()
    for name in RESERVED
    | {
        names.SHARDING_KEY,
        names.TRACE_CONTEXT,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.INNER_NUM,
        names.INNER_BASE,
        names.INNER_MULTI_DISPATCH,
    }
)
"""Properties that are no user's: fields of their own, or the system's business (pitfall 34)."""

# Final, because mypyc looks others up by their names, each time.
_TAGS: Final = b"TAGS"
_KEYS: Final = b"KEYS"
_UNIQ_KEY: Final = b"UNIQ_KEY"
_BORN_HOST: Final = names.BORN_HOST.encode()
_SHARDING_KEY: Final = names.SHARDING_KEY.encode()
_PRIORITY: Final = names.PRIORITY.encode()
_LITE_TOPIC: Final = names.LITE_TOPIC.encode()
_TRACE_CONTEXT: Final = b"TRACE_CONTEXT"
_TRAN_MSG: Final = b"TRAN_MSG"
_DUE: Final = b"TIMER_DELIVER_MS"
_DLQ_TOPIC: Final = names.DLQ_ORIGIN_TOPIC.encode()
_DLQ_ID: Final = names.DLQ_ORIGIN_MESSAGE_ID.encode()
_DELAYED: Final = frozenset((_DUE, b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS"))
_RARE: Final = frozenset(
    (_SHARDING_KEY, _TRACE_CONTEXT, _LITE_TOPIC, _PRIORITY, _TRAN_MSG, _DLQ_TOPIC, *_DELAYED)
)
"""What most messages have none of: fields, and what makes another type than NORMAL of one."""


def varint(number: int) -> bytes:
    """A number as protobuf has it; a negative one has ten bytes."""
    if 0 <= number < 128:
        return _LAST[number]
    number &= _U64
    return NOT_LAST[number & 0x7F] + _rest(number >> 7)


@lru_cache(maxsize=256)
def _rest(number: int) -> bytes:
    """Kept, because the numbers of one answer are close together."""
    return varint(number)


_LAST: Final = [bytes((number,)) for number in range(128)]
NOT_LAST: Final = [bytes((number | 0x80,)) for number in range(128)]
"""The lowest seven bits of a number that has more."""


_LENGTHS: Final = [varint(size) for size in range(1100)]


def encode_length(size: int) -> bytes:
    """As protobuf writes it before what it is the length of: most are short, and made once."""
    return _LENGTHS[size] if size < 1100 else varint(size)


def _field(tag: bytes, value: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return tag + encode_length(len(value)) + value


@lru_cache(maxsize=1024)
def encode_time(ms: int) -> bytes:
    """A Timestamp (or a Duration, which has the same fields), preceded by its length.

    Other doors accept times that no Timestamp can represent; some clients fail on those.
    """
    seconds, rest = divmod(min(max(ms, 0), LATEST_MS), 1000)
    encoded = (b"\x08" + varint(seconds) if seconds else b"") + (
        b"\x10" + varint(rest * 1_000_000) if rest else b""
    )
    return encode_length(len(encoded)) + encoded


@lru_cache(maxsize=256)
def _topic(name: str, namespace: str) -> bytes:
    resource = _field(b"\x12", name.encode())
    if namespace:
        resource = _field(b"\x0a", namespace.encode()) + resource
    return _field(b"\x0a", resource)


@lru_cache(maxsize=1024)
def _place(store_host: str, queue_id: int, attempt: int) -> bytes:
    """What the messages of one queue have alike: store host, queue, attempt."""
    encoded = _field(b"\x52", store_host.encode()) if store_host else b""
    return encoded + b"\x68" + varint(queue_id) + b"\x80\x01" + varint(min(max(attempt, 1), _LARGEST_INT))


@lru_cache(maxsize=1024)
def _hidden_for(receipt_part: str) -> bytes:
    """The field `invisible_duration`, from the part of a receipt that has it in ms; empty without one."""
    if not receipt_part.isascii() or not receipt_part.isdigit() or len(receipt_part) > 15:
        return b""
    return b"\x7a" + encode_time(int(receipt_part))


@lru_cache(maxsize=1024)
def _host_of(born_host: str) -> bytes:
    return born_host.rpartition(":")[0].strip("[]").encode()


def md5_text(body: bytes) -> str:
    """In upper case: clients compare it as text (pitfall 29)."""
    digest = (short_md5 if len(body) < _SHORT_BODY else md5)(body, usedforsecurity=False)
    text: str = digest.hexdigest()
    return text.upper()


def encode_received(stored: StoredMessage, topic: pb.Resource | None = None) -> bytes:
    """A `ReceiveMessageResponse` with this message."""
    message = encode_message(stored, topic)
    return b"\x12" + encode_length(len(message)) + message


def encode_message(stored: StoredMessage, topic: pb.Resource | None = None) -> bytes:
    """A `Message` as it is delivered, or as its producer is asked about it.

    `topic` is the client's own word for the topic; it gets that back, with its namespace.
    """
    block = stored.properties
    if not block.isascii():
        block = block.decode("utf-8", "replace").encode()
    properties = split_properties(block)
    body, packed = _body_out(stored)
    offset = stored.offset
    namespace = topic.resource_namespace if topic is not None else ""
    if namespace and topic is not None and topic.name != stored.topic:
        namespace = ""
    message_id = properties.get(_UNIQ_KEY)
    if message_id is None:
        message_id = encode_offset_message_id(stored.store_host, stored.commit_offset).encode()
    born_host = properties.get(_BORN_HOST)
    if born_host is None:
        born_host = _host_of(stored.born_host)
    kind = 1
    rare = b""
    if not _RARE.isdisjoint(properties):
        kind, rare = _type_of(properties), _rare_fields(properties)
    parts = [
        b"\x1a",
        encode_length(len(message_id)),
        message_id,
        b"\x22\x24\x08\x02\x12\x20",  # a digest of type MD5, with 32 characters
        md5_text(body).encode(),
        b"\x28\x02\x30" if packed else b"\x28\x01\x30",
        _LENGTHS[kind],
        b"\x3a",
        encode_time(stored.born_ms),
        b"\x42",
        encode_length(len(born_host)),
        born_host,
        b"\x4a",
        encode_time(stored.store_ms),
        _place(stored.store_host, stored.queue_id, stored.attempt or stored.reconsume_times + 1),
        b"\x70",
        varint(offset),
        rare,
    ]
    tag = properties.get(_TAGS)
    if tag is not None:
        parts += (b"\x0a", encode_length(len(tag)), tag)
    keys = properties.get(_KEYS)
    if keys is not None:
        for key in keys.split(b" "):
            if key:
                parts += (b"\x12", encode_length(len(key)), key)
    if stored.receipt:
        receipt = marked(stored.receipt.encode(), message_id, properties.get(_LITE_TOPIC) if rare else None)
        parts += (b"\x62", encode_length(len(receipt)), receipt)
        told_by = stored.receipt.split(" ", 3)
        if len(told_by) == 4:
            parts.append(_hidden_for(told_by[2]))
    system = b"".join(parts)
    parts = [_topic(stored.topic, namespace)]
    for key, value in properties.items():
        if key not in HIDDEN:
            key_length = encode_length(len(key))
            length = encode_length(len(value))
            size = 2 + len(key_length) + len(key) + len(length) + len(value)
            parts += (b"\x12", encode_length(size), b"\x0a", key_length, key, b"\x12", length, value)
    parts += (b"\x1a", encode_length(len(system)), system, b"\x22", encode_length(len(body)), body)
    return b"".join(parts)


def _rare_fields(properties: dict[bytes, bytes]) -> bytes:
    """The fields of `SystemProperties` that most messages have not."""
    get = properties.get
    encoded = b""
    if (message_group := get(_SHARDING_KEY)) is not None:
        encoded += _field(b"\x8a\x01", message_group)
    if (trace := get(_TRACE_CONTEXT)) is not None:
        encoded += _field(b"\x92\x01", trace)
    if (lite_topic := get(_LITE_TOPIC)) is not None:
        encoded += _field(b"\xaa\x01", lite_topic)
    priority = get(_PRIORITY)
    if priority is not None and len(priority) <= 10 and priority.isdigit():
        number = int(priority)
        if number <= _LARGEST_INT:
            encoded += b"\xb0\x01" + varint(number)
    due = get(_DUE)
    if due is not None and len(due) < 16 and due.isdigit():
        encoded += b"\x5a" + encode_time(int(due))
    origin = get(_DLQ_TOPIC)
    if origin is not None and (origin_id := get(_DLQ_ID)) is not None:
        encoded += _field(b"\xa2\x01", _field(b"\x0a", origin) + _field(b"\x12", origin_id))
    return encoded


def _body_out(stored: StoredMessage) -> tuple[bytes, bool]:
    """The body, and whether it is marked GZIP.

    GZIP is passed as it is. Other packings are undone: remoting producers, and the C++ client under
    the mark of GZIP, use ones that most clients cannot open (pitfall 31). What cannot be unpacked
    is passed as it is, for the client to decide.
    """
    body = stored.body
    if not stored.sys_flag & _COMPRESSED or not body:
        return body, False
    if body.startswith(_GZIP_MAGIC):
        return body, True
    try:
        return decompress(body, borne(body, _LARGEST_BODY)), False
    except (PeerWireError, Unsupported):
        return body, True


def _type_of(properties: dict[bytes, bytes]) -> int:
    """A number of `MessageType`."""
    if properties.get(_TRAN_MSG) == b"true":
        return pb.TRANSACTION
    if not _DELAYED.isdisjoint(properties):
        return pb.DELAY
    if _SHARDING_KEY in properties:
        return pb.FIFO
    if _PRIORITY in properties:
        return pb.PRIORITY
    if _LITE_TOPIC in properties:
        return pb.LITE
    return pb.NORMAL
