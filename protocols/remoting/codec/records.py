"""Encodes messages for classic clients: stored records, one after the other.

Bodies stay unchanged, and compressed ones stay compressed. Source: protocol facts 3.8 and 5.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from popgate.messages.stored_records import StoredRecords
from popgate.model import StoredMessage
from popgate.wire.messages.hosts import V4_SIZE, pack_host
from popgate.wire.messages.records import COMMIT_OFFSET_AT, STORE_HOST_AT, encode_record
from protocols.remoting.codec.marks import Marks, Origin

_unpack_place = Struct(">q").unpack_from
_pack_place_into = Struct(">q").pack_into
_pack_host_into = Struct(f"{V4_SIZE}s").pack_into


def encode_stored(message: StoredMessage, origin: Origin) -> bytes:
    """One record, at the place that `origin` gives.

    A client builds the message's id from the store host and the place in the log, and connects there to look
    the message up and, up to 4.9.4, to send it back. Raises LocalWireError when a part does not fit.
    """
    return _record(message, pack_host(origin.host), origin.marks)


def encode_all(messages: Iterable[StoredMessage], origin: Origin) -> bytes:
    """The body of an answer with these messages. Raises as `encode_stored`."""
    host, marks = pack_host(origin.host), origin.marks
    if isinstance(messages, StoredRecords) and len(host) == V4_SIZE:
        return _passed_on(messages, host, marks)
    return b"".join([_record(message, host, marks) for message in messages])


def _passed_on(records: StoredRecords, host: bytes, marks: Marks | None) -> bytes:
    """Records as they are, except for the address of their broker and the mark of their places."""
    data = bytearray(records.data)
    for start in records.starts:
        _pack_host_into(data, start + STORE_HOST_AT, host)
    broker = records.broker
    if marks is not None and not marks.leave(broker):
        for start in records.starts:
            (place,) = _unpack_place(data, start + COMMIT_OFFSET_AT)
            _pack_place_into(data, start + COMMIT_OFFSET_AT, marks.marked(broker, place))
    return bytes(data)


def encode_numbered(
    messages: Iterable[StoredMessage], numbers: Sequence[int], queue_id: int, origin: Origin
) -> bytes:
    """As `encode_all`, of popped messages that have other offsets for their client, in the queue it asked."""
    host, marks = pack_host(origin.host), origin.marks
    return b"".join(
        [
            encode_record(
                message.topic.encode(),
                queue_id,
                number,
                message.commit_offset
                if marks is None
                else marks.marked(message.broker, message.commit_offset),
                message.body,
                message.properties,
                message.sys_flag,
                message.flag,
                message.born_ms,
                pack_host(message.born_host),
                message.store_ms,
                host,
                max(message.attempt - 1, 0),
            )
            for message, number in zip(messages, numbers, strict=True)
        ]
    )


def _record(message: StoredMessage, store_host: bytes, marks: Marks | None) -> bytes:
    place = message.commit_offset
    return encode_record(
        message.topic.encode(),
        message.queue_id,
        message.offset,
        place if marks is None else marks.marked(message.broker, place),
        message.body,
        message.properties,
        message.sys_flag,
        message.flag,
        message.born_ms,
        pack_host(message.born_host),
        message.store_ms,
        store_host,
        message.attempt - 1 if message.attempt > 0 else message.reconsume_times,
    )
