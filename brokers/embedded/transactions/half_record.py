"""One half message in the store: its state, and the record that becomes the message."""

from __future__ import annotations

import struct
from typing import NamedTuple

from popgate.wire.messages.properties import TRAN_MSG, drop_properties, set_if_room
from popgate.wire.messages.records import TRANSACTION_MASK, decode_record, encode_record

_STATE = struct.Struct(">IHQQQI")


class Half(NamedTuple):
    """The state of a half message. Times in ms of the wall clock; `checks` counts the asked ones."""

    topic_id: int
    queue_id: int
    stored_ms: int
    deliver_at_ms: int
    check_at_ms: int
    checks: int
    producer_group: str

    def encode(self) -> bytes:
        return _STATE.pack(*self[:6]) + self.producer_group.encode("utf-8", "replace")


def decode_half(data: bytes) -> Half:
    topic_id, queue_id, stored_ms, deliver_at_ms, check_at_ms, checks = _STATE.unpack_from(data)
    group = data[_STATE.size :].decode("utf-8", "replace")
    return Half(topic_id, queue_id, stored_ms, deliver_at_ms, check_at_ms, checks, group)


def without_transaction(
    record: bytes,
    topic: bytes,
    flags: int,
    sequence: int,
    origin: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """The record as it is delivered: no property says any more that it is prepared."""
    half = decode_record(record)
    properties = drop_properties(half.properties, (TRAN_MSG.encode(),))
    for name, value in origin:
        properties = set_if_room(properties, name, value)
    return encode_record(
        topic,
        half.queue_id,
        0,
        0,
        half.body,
        properties,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | flags,
        flag=half.flag,
        born_ms=half.born_ms,
        born_host=half.born_host,
        store_ms=half.store_ms,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
        prepared_offset=sequence,
    )
