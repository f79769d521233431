"""Messages of gRPC as stored records, and encoded rows as messages of gRPC.

The gateway makes them of records, and blocks of properties of them (`protocols.grpc.codec`); this is the way
back. Sources: protocol facts 1.10, 3.3 to 3.7 and 5.6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from popgate.errors import LocalWireError, PeerWireError, shown
from popgate.ids.message_id import encode_offset_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.messages import properties as names
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import LONGEST_BLOCK, RESERVED, decode_properties
from popgate.wire.messages.records import COMPRESSED, encode_record

_LAST_SECOND: Final = 253_402_300_799
"""Of a Timestamp: the end of the year 9999."""
_LONGEST_HOST: Final = 64
"""Characters: an address has fewer, and those that were packed are remembered."""
_SYSTEMS: Final = RESERVED | {names.SHARDING_KEY, names.TRACE_CONTEXT}
"""Names that no user property of a delivery has."""
_DAMAGED: Final = "\ufffd".encode()
_ENCODINGS: Final = frozenset((int(pb.ENCODING_UNSPECIFIED), int(pb.IDENTITY), int(pb.GZIP)))


def record_of(message: pb.Message, queue_id: int) -> bytes:
    """A pulled message as a stored record that has the same columns as the broker's own.

    What gRPC does not tell is 0: the flag, the commit log offset, and the port of the born host. User
    properties are sorted by name. Raises PeerWireError for what is no stored message, or would have other
    columns as a record.
    """
    system = message.system_properties
    for name in ("queue_offset", "born_timestamp", "store_timestamp"):
        if not system.HasField(name):
            raise PeerWireError(f"a message has no {name}")
    offset, encoding = system.queue_offset, system.body_encoding
    if encoding not in _ENCODINGS:
        raise _unfit(offset, f"has the body encoding {encoding}, which is not known")
    try:
        return encode_record(
            message.topic.name.encode(),
            queue_id,
            offset,
            0,
            message.body,
            _block_of(message, offset),
            COMPRESSED if encoding == pb.GZIP else 0,
            0,
            _millis(system.born_timestamp, offset),
            _packed(system.born_host),
            _millis(system.store_timestamp, offset),
            _packed(system.store_host),
            max(system.delivery_attempt - 1, 0),
        )
    except LocalWireError as error:
        raise _unfit(offset, f"is none that a broker can store: {error}") from error


def message_of(topic: str, body: bytes, block: bytes, born_ms: int = 0) -> pb.Message:
    """A row as a message to send, from the block of properties that the sink encoded.

    `born_ms`: ms since 1970; 0 lets the gateway tell the time. Raises ValueError for properties that only the
    system gives, as those of a half message.
    """
    message = pb.Message(topic=pb.Resource(name=topic), body=body)
    system, user = message.system_properties, message.user_properties
    system.body_encoding, system.message_type = pb.IDENTITY, pb.NORMAL
    if born_ms > 0:
        _set_time(system.born_timestamp, born_ms)
    for name, value in decode_properties(block).items():
        match name:
            case names.UNIQ_KEY:
                system.message_id = value
            case names.TAGS:
                system.tag = value
            case names.KEYS:
                keys = value.split(" ")
                # With a key that is blank the text would not be the same, and that is what is compacted by.
                system.keys.extend([value] if any(not key.strip() for key in keys) else keys)
            case names.SHARDING_KEY:
                system.message_group = value
            case names.TIMER_DELIVER_MS:
                _set_time(system.delivery_timestamp, int(value))
            case names.PRIORITY:
                # Without the type, 0 is taken for none.
                system.priority, system.message_type = int(value), pb.PRIORITY
            case names.LITE_TOPIC:
                system.lite_topic = value
            case _ if name in RESERVED:
                raise ValueError(f"a row has no property {name}")
            case _:
                user[name] = value
    if system.message_type == pb.NORMAL:
        system.message_type = _kind_of(system)
    return message


def _kind_of(system: pb.SystemProperties) -> pb.MessageType:
    """The type that its fields make of a message, in the gateway's order."""
    has = system.HasField
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    # One with a delay level tells no time.
    if system.message_type == pb.DELAY or has("delivery_timestamp"):
        return pb.DELAY
    if system.message_group:
        return pb.FIFO
    # A priority that is no number is told by the type alone.
    if system.message_type == pb.PRIORITY or has("priority"):
        return pb.PRIORITY
    return pb.LITE if system.lite_topic else pb.NORMAL


def _block_of(message: pb.Message, offset: int) -> bytes:
    """Raises PeerWireError."""
    system = message.system_properties
    kind = _kind_of(system)
    if system.message_type not in (pb.MESSAGE_TYPE_UNSPECIFIED, kind):
        raise _unfit(offset, f"has the type {system.message_type}, and what makes it one of {kind}")
    pairs = []
    # In an order of their own: that of protobuf is another each time, and a sink knows rows by their content.
    for name, value in sorted(message.user_properties.items()):
        if name in _SYSTEMS:
            raise _unfit(offset, f"has the user property {name}, which is the system's")
        pairs.append((name, value))
    if system.message_id and not _is_place(system.message_id, system.store_host):
        pairs.append((names.UNIQ_KEY, system.message_id))
    if system.tag:
        pairs.append((names.TAGS, system.tag))
    if system.keys:
        for key in system.keys:
            if not key or " " in key:
                raise _unfit(offset, f"has the key {shown(key)}, which is none or two")
        pairs.append((names.KEYS, " ".join(system.keys)))
    if system.message_group:
        pairs.append((names.SHARDING_KEY, system.message_group))
    if system.trace_context:
        pairs.append((names.TRACE_CONTEXT, system.trace_context))
    if system.lite_topic:
        pairs.append((names.LITE_TOPIC, system.lite_topic))
    if kind == pb.TRANSACTION:
        pairs.append((names.TRAN_MSG, "true"))
    if system.HasField("delivery_timestamp"):
        pairs.append((names.TIMER_DELIVER_MS, str(_millis(system.delivery_timestamp, offset))))
    elif kind == pb.DELAY:
        pairs.append((names.DELAY, "1"))
    if system.HasField("priority"):
        pairs.append((names.PRIORITY, str(system.priority)))
    elif kind == pb.PRIORITY:
        pairs.append((names.PRIORITY, "?"))
    block = "".join([_entry(name, value, offset) for name, value in pairs]).encode()
    if len(block) > LONGEST_BLOCK:
        # For each damaged character, which may be one byte where it is stored, the gateway tells three.
        block = block[:-1].replace(_DAMAGED, b"\xff")
    return block


def _entry(name: str, value: str, offset: int) -> str:
    """A value may have the separator behind a name, because only the first one counts."""
    if not name or not value or "\x01" in name or "\x02" in name or "\x02" in value:
        raise _unfit(offset, f"has the property {shown(name)} = {shown(value)}, which a block cannot hold")
    return f"{name}\x01{value}\x02"


def _is_place(message_id: str, store_host: str) -> bool:
    """Whether an id is what the gateway gives to a message without one: its place in the broker."""
    front = _front_of_places(store_host[:_LONGEST_HOST])
    return len(message_id) == len(front) + 16 and message_id.startswith(front)


@lru_cache(maxsize=256)
def _front_of_places(store_host: str) -> str:
    return encode_offset_message_id(store_host, 0)[:-16]


def _packed(host: str) -> bytes:
    return pack_host(host[:_LONGEST_HOST])


def _millis(time: Timestamp, offset: int) -> int:
    """Raises PeerWireError for none that a Timestamp may be."""
    seconds, nanos = time.seconds, time.nanos
    if not (0 <= seconds <= _LAST_SECOND and 0 <= nanos < 1_000_000_000):
        raise _unfit(offset, f"has a time of {seconds} s and {nanos} ns")
    return seconds * 1000 + nanos // 1_000_000


def _set_time(time: Timestamp, ms: int) -> None:
    time.seconds, time.nanos = ms // 1000, ms % 1000 * 1_000_000


def _unfit(offset: int, sentence: str) -> PeerWireError:
    return PeerWireError(f"a message {sentence} (offset {offset})")
