"""Records of a pull that can be passed on without being decoded. Source: protocol facts 3.6 and 5.6.

The stored birth host is that of the gateway, and the stored time of a batch is that of its request; the
true values are in the properties. They overwrite those of the record, at positions that are fixed
as long as all hosts are IPv4.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from popgate.model import Filter
from popgate.wire.messages.hosts import V4_SIZE, pack_host
from popgate.wire.messages.plain_records import plain_parts, unpack_head
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP
from popgate.wire.messages.records import (
    BODY_AT,
    BORN_HOST_AT,
    BORN_MS_AT,
    HOSTS_V6,
    MAGIC_V1,
    SMALLEST_RECORD,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_pack_time = Struct(">q").pack
_put_birth = Struct(f"{8 + V4_SIZE}s").pack_into
"""Takes half the time of an assignment to a slice."""
_BORN_HOST, _BORN_TIMESTAMP = f"{BORN_HOST}\x01".encode(), f"{BORN_TIMESTAMP}\x01".encode()
_END: Final = 2
"""The byte that ends a property."""
_MOST_DIGITS: Final = 16
"""As many have no time that any clock tells."""
_BOTH: Final = 8 + V4_SIZE
_TIME, _HOST = 1, 2


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
    at: i64
    begin: i64
    start: i64
    end: i64
    stop: i64
    size: i64
    body_length: i64
    around: i64
    width: i64
    block_at: i64
    body_bytes: i64
    matches = None if passing.everything else passing.matches
    parts: list[bytes] = []
    starts: list[int] = []
    births: list[tuple[int, bytes]] = []
    next_offset = None
    at = begin = start = body_bytes = 0
    end = len(data)
    # Records of one queue are mostly alike: what stands between the body and the properties, and how much
    # there is around the body, is read of one, and compared for those that follow.
    around, behind, width = 0, b"", 0
    births_alike = _Births()
    while at < end:
        if end - at < SMALLEST_RECORD:
            return None
        size, magic, record_offset, sys_flag, body_length = unpack_head(data, at)
        stop = at + size
        block_at = at + BODY_AT + body_length
        if (
            width  # that of a record that was read is never 0
            and size - body_length == around
            and magic == MAGIC_V1
            and stop <= end
            and not sys_flag & HOSTS_V6
            # A slice is compared in half the time that `startswith` takes.
            and data[block_at : block_at + width] == behind
        ):
            block_at += width
        else:
            plain = plain_parts(data, at)
            if plain is None:
                return None
            around, behind = size - body_length, data[block_at : plain[3]]
            block_at, width = plain[3], len(behind)
        if record_offset >= offset and (len(starts) == max_messages or (starts and size > room)):
            next_offset = record_offset
            end = at
            break
        if record_offset < offset or (matches is not None and not matches(data[block_at:stop])):
            if begin < at:
                parts.append(data[begin:at])
            begin = at = stop
            continue
        birth = births_alike.find(data, block_at, stop)
        if birth is None:
            return None
        if birth:
            births.append((start, birth))
        starts.append(start)
        start += size
        body_bytes += body_length
        room -= size
        at = stop
    if begin < end:
        parts.append(data[begin:end])
    return Scan(_with_births(parts, births), starts, body_bytes, next_offset)


def _with_births(parts: list[bytes], births: list[tuple[int, bytes]]) -> bytes:
    """The records together, with when and where they were born, which are as `_Births.find` returns them."""
    records = bytearray().join(parts)
    for start, birth in births:
        if len(birth) == _BOTH:
            _put_birth(records, start + BORN_MS_AT, birth)
        elif birth[0] == _TIME:
            records[start + BORN_MS_AT : start + BORN_HOST_AT] = birth[1:]
        else:
            records[start + BORN_HOST_AT : start + BORN_HOST_AT + V4_SIZE] = birth[1:]
    return bytes(records)


class _Births:
    """Reads the births of messages of which many have the same host, and the same properties behind them.

    `_told`: the two properties as the gateway writes them, up to the digits of the time, with the end of the
    property before. `_tail`: what is behind the digits, which has neither of the two. `_same`: all of that of
    the last message, and `_birth` what it says.
    """

    __slots__ = ("_birth", "_digits", "_host", "_same", "_tail", "_told")

    def __init__(self) -> None:
        self._told = self._tail = self._same = b""
        self._digits = 0
        """How many."""
        self._host = self._birth = b""

    def find(self, data: bytes, block_at: i64, stop: i64) -> bytes | None:
        """The time and the host of a message whose properties stand there, packed; empty: it has neither.

        9 bytes: one of the two, behind `_TIME` or `_HOST`. None: one of them is not what it looks like.
        """
        names = self._told
        if names:
            begin: i64 = stop - len(self._same)
            if begin >= block_at and data[begin:stop] == self._same:
                return self._birth
            tail_at: i64 = stop - len(self._tail)
            digits_at: i64 = tail_at - self._digits
            begin = digits_at - len(names)
            if begin >= block_at and data[begin:digits_at] == names and data[tail_at:stop] == self._tail:
                digits = data[digits_at:tail_at]
                if digits.isdigit():
                    self._same = names + digits + self._tail
                    self._birth = _pack_time(int(digits)) + self._host
                    return self._birth
        return self._read(data[block_at:stop])

    def _read(self, block: bytes) -> bytes | None:
        """As `find`, by all properties of a message."""
        time_at, host_at = block.rfind(_BORN_TIMESTAMP), block.rfind(_BORN_HOST)
        if time_at < 0 and host_at < 0:
            return b""
        birth = _birth(block, time_at, host_at)
        if birth is None:
            return None
        born_ms, host = birth
        if not host:
            return b"%c%b" % (_TIME, _pack_time(born_ms))
        if born_ms < 0:
            return b"%c%b" % (_HOST, host)
        packed = _pack_time(born_ms) + host
        digits_at = time_at + len(_BORN_TIMESTAMP)
        tail_at = block.find(b"\x02", digits_at)
        if 0 < host_at < time_at and tail_at >= 0:
            self._told, self._tail = block[host_at - 1 : digits_at], block[tail_at:]
            self._digits, self._host = tail_at - digits_at, host
            self._same, self._birth = block[host_at - 1 :], packed
        return packed


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
        if not digits.isdigit() or len(digits) >= _MOST_DIGITS:
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
