"""Records of a pull that can be passed on without being decoded. Source: protocol facts 3.6 and 5.6.

The stored birth host is that of the gateway, and the stored time of a batch is that of its request; the
true values are in the properties. They overwrite those of the record, at positions that are fixed
as long as all hosts are IPv4.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from popgate.model import Filter
from popgate.wire.messages.hosts import V4_SIZE, pack_host
from popgate.wire.messages.plain_records import plain_parts
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP
from popgate.wire.messages.records import BORN_HOST_AT, BORN_MS_AT

_pack_time_into = Struct(">q").pack_into
_BORN_HOST, _BORN_TIMESTAMP = f"{BORN_HOST}\x01".encode(), f"{BORN_TIMESTAMP}\x01".encode()
_END: Final = 2
"""The byte that ends a property."""


class Scan(NamedTuple):
    """Whole records one behind the other, and where each begins.

    `next_offset`: of the first record that was left out for want of room; None: none was.
    """

    data: bytes
    starts: list[int]
    body_bytes: int
    next_offset: int | None


def scan_records(data: bytes, offset: int, passing: Filter, max_messages: int, room: int) -> Scan | None:
    """The records from `offset` on that pass, at most `max_messages`, after the first at most `room` bytes.

    None: they have to be decoded, since one is damaged, or has an IPv6 host or a topic that is not ASCII.
    """
    matches = None if passing.everything else passing.matches
    parts: list[bytes] = []
    starts: list[int] = []
    births: list[tuple[int, int, bytes]] = []
    at, start, end = 0, 0, len(data)
    body_bytes, next_offset = 0, None
    while at < end:
        plain = plain_parts(data, at)
        if plain is None:
            return None
        stop, record_offset, body_length, block_at = plain
        size = stop - at
        if record_offset < offset:
            at = stop
            continue
        if len(starts) == max_messages or (starts and size > room):
            next_offset = record_offset
            break
        if matches is not None and not matches(data[block_at:stop]):
            at = stop
            continue
        born_ms, born_host = (
            data.rfind(_BORN_TIMESTAMP, block_at, stop),
            data.rfind(_BORN_HOST, block_at, stop),
        )
        if born_ms >= 0 or born_host >= 0:
            block = data[block_at:stop]
            birth = _birth(block, born_ms - block_at, born_host - block_at)
            if birth is None:
                return None
            births.append((start, *birth))
        parts.append(data[at:stop])
        starts.append(start)
        start += size
        body_bytes += body_length
        room -= size
        at = stop
    records = bytearray().join(parts)
    for start, born_ms, host in births:
        if born_ms >= 0:
            _pack_time_into(records, start + BORN_MS_AT, born_ms)
        if host:
            records[start + BORN_HOST_AT : start + BORN_HOST_AT + V4_SIZE] = host
    return Scan(bytes(records), starts, body_bytes, next_offset)


def _birth(block: bytes, time_at: int, host_at: int) -> tuple[int, bytes] | None:
    """When and where a message was born, by the properties at these positions of its block.

    -1 and an empty host: not there. None: one of them is not what it looks like.
    """
    born_ms, host = -1, b""
    if time_at >= 0:
        if time_at and block[time_at - 1] != _END:
            return None
        begin = time_at + len(_BORN_TIMESTAMP)
        end = block.find(b"\x02", begin)
        digits = block[begin:end] if end >= 0 else block[begin:]
        if not digits.isdigit() or len(digits) >= 16:
            return None
        born_ms = int(digits)
    if host_at >= 0:
        if host_at and block[host_at - 1] != _END:
            return None
        begin = host_at + len(_BORN_HOST)
        end = block.find(b"\x02", begin)
        text = block[begin:end] if end >= 0 else block[begin:]
        host = _packed(text)
        if not text or len(host) != V4_SIZE:
            return None
    return born_ms, host


@lru_cache(maxsize=4096)
def _packed(text: bytes) -> bytes:
    return pack_host(text.decode("utf-8", "replace"))
