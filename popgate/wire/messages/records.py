"""The stored message: one layout for the store, for pull and pop bodies, and for look-ups.

Big-endian; version 2 differs from version 1 in the length of the topic (two bytes, for topics
above 127 bytes). Hosts have 8 bytes, or 20 when a bit of `sys_flag` says IPv6.
Source: protocol facts 3.8 and 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.checksum import crc32
from popgate.wire.messages.hosts import host_text as host_text
from popgate.wire.messages.hosts import pack_host as pack_host
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP, LONGEST_BLOCK, find_property

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
NO_HOSTS_V6: Final = ~HOSTS_V6
LONGEST_V1_TOPIC: Final = 127
MOST_LENGTHS: Final = 1024
_LENGTHS_V1: Final = [length.to_bytes(1, "big") for length in range(LONGEST_V1_TOPIC + 1)]
LENGTHS: Final = [length.to_bytes(2, "big") for length in range(MOST_LENGTHS)]
"""Nearly every length of a topic or of properties that is ever told; to make one costs more than a look."""
_HEADS: Final = {
    0: Struct(">IIIiiqqiq8sq8siqI"),
    BORN_HOST_V6: Struct(">IIIiiqqiq20sq8siqI"),
    STORE_HOST_V6: Struct(">IIIiiqqiq8sq20siqI"),
    HOSTS_V6: Struct(">IIIiiqqiq20sq20siqI"),
}
"""Everything before the body, by the two host bits of `sys_flag`."""
COMMIT_OFFSET_AT: Final = 28
BORN_MS_AT: Final = 40
BORN_HOST_AT: Final = 48
STORE_HOST_AT: Final = 64
BODY_AT: Final = 88
"""Where they stand in a record whose hosts are IPv4."""
_HEAD: Final = _HEADS[0]
_pack_head: Final = _HEAD.pack
_unpack_head: Final = _HEAD.unpack_from
HEAD_SIZE: Final = _HEAD.size
"""Of a record whose hosts are IPv4: everything before the body."""
SMALLEST_RECORD: Final = HEAD_SIZE + 1 + 2
_unpack_short: Final = Struct(">h").unpack_from
_place_queue: Final = Struct(">i").pack_into
_place_offsets: Final = Struct(">qq").pack_into
_place_time: Final = Struct(">q").pack_into
_unpack_length: Final = Struct(">I").unpack_from
_BORN_HOST: Final = BORN_HOST.encode()
_BORN_TIMESTAMP: Final = BORN_TIMESTAMP.encode()


class Record(NamedTuple):
    """A decoded record. Hosts are packed: `host_text` reads them. `size` counts the whole record."""

    topic: str
    queue_id: int
    offset: int
    commit_offset: int
    body: bytes
    properties: bytes
    sys_flag: int
    flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    size: int


def sender_host(record: Record) -> str:
    """The birth host of the message: `born_host` is that of the broker's client (protocol facts 3.6)."""
    text = find_property(record.properties, _BORN_HOST)
    return host_text(record.born_host) if text is None else text.decode("utf-8", "replace")


def sender_ms(record: Record) -> int:
    """When the message was born: of a batch `born_ms` is that of the request (protocol facts 5.7)."""
    text = find_property(record.properties, _BORN_TIMESTAMP)
    return int(text) if text is not None and len(text) < 16 and text.isdigit() else record.born_ms


def encode_record(
    topic: bytes,
    queue_id: int,
    offset: int,
    commit_offset: int,
    body: bytes,
    properties: bytes,
    sys_flag: int,
    flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Encode one message. The host bits of `sys_flag` are set by the lengths of the hosts.

    Raises LocalWireError when a part is too long for the layout or a number does not fit.
    """
    head, size = _pack_head, HEAD_SIZE
    if len(born_host) == 8 and len(store_host) == 8:
        sys_flag &= NO_HOSTS_V6
    else:
        bits = (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)
        _check_hosts(born_host, store_host)
        sys_flag = sys_flag & NO_HOSTS_V6 | bits
        head, size = _HEADS[bits].pack, _HEADS[bits].size
    topic_length, length = len(topic), len(properties)
    if topic_length <= LONGEST_V1_TOPIC:
        magic = MAGIC_V1
        told_topic_length = _LENGTHS_V1[topic_length]
    else:
        if topic_length > LONGEST_BLOCK:
            raise LocalWireError(f"the topic has {topic_length} bytes, a record holds {LONGEST_BLOCK}")
        magic = MAGIC_V2
        told_topic_length = topic_length.to_bytes(2, "big")
    if length < MOST_LENGTHS:
        told_length = LENGTHS[length]
    else:
        if length > LONGEST_BLOCK:
            raise LocalWireError(f"the properties have {length} bytes, a record holds {LONGEST_BLOCK}")
        told_length = length.to_bytes(2, "big")
    try:
        front = head(
            size + len(body) + len(told_topic_length) + topic_length + 2 + length,
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            offset,
            commit_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_offset,
            len(body),
        )
    except Exception as error:
        raise LocalWireError(f"a number does not fit into a record: {error}") from error
    return b"".join((front, body, told_topic_length, topic, told_length, properties))


def decode_record(data: bytes, start: int = 0, *, verify: bool = False) -> Record:
    """Decode the record that begins at `start`; bytes behind it do not matter.

    `verify` compares the body with its checksum. Raises PeerWireError for anything damaged.
    """
    available = len(data) - start
    if available < SMALLEST_RECORD:
        raise PeerWireError(f"a record needs {SMALLEST_RECORD} bytes, there are {max(available, 0)}")
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        offset,
        commit_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body_length,
    ) = _unpack_head(data, start)
    if size > available or size < SMALLEST_RECORD:
        raise PeerWireError(f"a record claims {size} bytes, there are {available}")
    at = start + HEAD_SIZE
    if sys_flag & HOSTS_V6:
        head = _HEADS[sys_flag & HOSTS_V6]
        if size < head.size + 3:
            raise PeerWireError(f"a record with IPv6 hosts claims {size} bytes")
        (born_ms, born_host, store_ms, store_host, reconsume_times, prepared_offset, body_length) = (
            head.unpack_from(data, start)[8:]
        )
        at = start + head.size
    end = start + size
    body_end = at + body_length
    if body_end + 3 > end:
        raise PeerWireError(f"a record of {size} bytes claims a body of {body_length}")
    if magic == MAGIC_V1:
        topic_at = body_end + 1
        topic_length = data[body_end]
        if topic_length > LONGEST_V1_TOPIC:
            raise PeerWireError("the topic length of a record is negative")
    elif magic == MAGIC_V2:
        topic_at = body_end + 2
        (topic_length,) = _unpack_short(data, body_end)
        if topic_length < 0:
            raise PeerWireError("the topic length of a record is negative")
    else:
        raise PeerWireError(f"a record has the magic {magic:08x}")
    topic_end = topic_at + topic_length
    if topic_end + 2 > end:
        raise PeerWireError(f"a record of {size} bytes claims a topic of {topic_length}")
    (length,) = _unpack_short(data, topic_end)
    if length < 0 or topic_end + 2 + length != end:
        raise PeerWireError(f"a record claims {length} bytes of properties, which is not what is left of it")
    body = data[at:body_end]
    if verify and crc32(body) & 0x7FFFFFFF != body_crc:
        raise PeerWireError("the body of a record does not have its checksum")
    try:
        topic = data[topic_at:topic_end].decode()
    except UnicodeDecodeError as error:
        raise PeerWireError("the topic of a record is no UTF-8") from error
    return tuple.__new__(
        Record,
        (
            topic,
            queue_id,
            offset,
            commit_offset,
            body,
            data[topic_end + 2 : end],
            sys_flag,
            flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_offset,
            body_crc,
            size,
        ),
    )


def decode_records(data: bytes, *, verify: bool = False) -> Iterator[Record]:
    """Decode records that stand one behind the other. Raises PeerWireError at the first damage."""
    at, end = 0, len(data)
    while at < end:
        record = decode_record(data, at, verify=verify)
        yield record
        at += record.size


def place_record(record: bytes, *, queue_id: int, offset: int, commit_offset: int, store_ms: int) -> bytes:
    """Give an encoded record its place: queue, offsets and store time; everything else stays.

    The record is one that `encode_record` made. Raises LocalWireError when it is too short.
    """
    if len(record) < SMALLEST_RECORD:
        raise LocalWireError(f"a record has at least {SMALLEST_RECORD} bytes, this one {len(record)}")
    placed = bytearray(record)
    _place_queue(placed, 12, queue_id)
    _place_offsets(placed, 20, offset, commit_offset)
    _place_time(placed, 68 if placed[39] & BORN_HOST_V6 else 56, store_ms)
    return bytes(placed)


def record_properties(record: bytes) -> bytes:
    """The properties block alone, of a whole record that `encode_record` made."""
    at = _HEADS[record[39] & HOSTS_V6].size
    at += _unpack_length(record, at - 4)[0]
    at += 1 + record[at] if record[7] == MAGIC_V1 & 0xFF else 2 + (record[at] << 8 | record[at + 1])
    return record[at + 2 :]


def _check_hosts(*hosts: bytes) -> None:
    for host in hosts:
        if len(host) not in (8, 20):
            raise LocalWireError(f"a packed host has 8 or 20 bytes, not {len(host)}")
