"""Stored records that are passed on as they are: what of them has to be looked at, and no more.

A record is plain if it is sound, its hosts are IPv4, and its topic is ASCII: then others read it as it is
stored. The layout is that of `popgate.wire.messages.records`.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from popgate.wire.messages.properties import LONGEST_BLOCK
from popgate.wire.messages.records import (
    BODY_AT,
    HOSTS_V6,
    LONGEST_V1_TOPIC,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD,
)

unpack_head: Final = Struct(">II12xq8xi44xI").unpack_from
"""Size, magic, offset, sys flag, and the length of the body."""


def plain_parts(data: bytes, start: int = 0) -> tuple[int, int, int, int] | None:
    """Of a plain record: where it ends, its offset, the length of its body, and where its properties begin.

    None: the one that begins at `start` is not plain, and has to be decoded.
    """
    end = len(data)
    if end - start < SMALLEST_RECORD:
        return None
    size, magic, offset, sys_flag, body_length = unpack_head(data, start)
    stop = start + size
    topic_at = start + BODY_AT + body_length
    if stop > end or topic_at + 3 > stop or sys_flag & HOSTS_V6:
        return None
    # Lengths are signed numbers: half of what their bytes could say is damage.
    topic_length = data[topic_at]
    topic_at += 1
    if magic == MAGIC_V2:
        topic_length = topic_length << 8 | data[topic_at]
        topic_at += 1
    elif magic != MAGIC_V1 or topic_length > LONGEST_V1_TOPIC:
        return None
    length_at = topic_at + topic_length
    block_at = length_at + 2
    if block_at > stop or topic_length > LONGEST_BLOCK or not data[topic_at:length_at].isascii():
        return None
    length = data[length_at] << 8 | data[length_at + 1]
    if length > LONGEST_BLOCK or block_at + length != stop:
        return None
    return stop, offset, body_length, block_at


class PlainRun(NamedTuple):
    """Plain records that follow one another, and where each begins if `pieces` are put together.

    `is_cut`: one more was there, or may be, and there was no room for it.
    """

    pieces: list[bytes]
    starts: list[int]
    body_bytes: int
    is_cut: bool


def plain_run(
    values: Iterable[bytes], topic: bytes, offset: int, max_messages: int, max_bytes: int
) -> PlainRun | None:
    """The first records of `values`, as many as are allowed: the first one counts in any case.

    A value is one record or several; those before `offset` do not count. `topic`: the name that most of
    them have. None: one of them is not plain, or not at the offset behind the one before it, of which the
    first has to be `offset`.
    """
    pieces: list[bytes] = []
    starts: list[int] = []
    add_start = starts.append
    start = body_bytes = 0
    named = len(topic).to_bytes(2, "big")[1:] + topic
    may_be_named = topic.isascii() and len(topic) <= LONGEST_V1_TOPIC
    around = BODY_AT + len(named) + 2
    behind = b""
    length_behind: int | None = None
    for value in values:
        begin = position = 0
        end = len(value)
        while position < end:
            if end - position < SMALLEST_RECORD:
                return None
            size, magic, at, sys_flag, body_length = unpack_head(value, position)
            length = size - around - body_length
            if length != length_behind and 0 <= length <= LONGEST_BLOCK:
                length_behind, behind = length, named + length.to_bytes(2, "big")
            stop = position + size
            if (
                not (
                    may_be_named
                    and stop <= end
                    and magic == MAGIC_V1
                    and length == length_behind
                    and not sys_flag & HOSTS_V6
                    # Its topic, and the length of its properties: so all its parts are where they should be.
                    and value.startswith(behind, position + BODY_AT + body_length)
                )
                and plain_parts(value, position) is None
            ):
                return None
            if at != offset:
                if at > offset or starts:  # it is damaged, or not where it was put, or there is a hole
                    return None
                begin = position = stop
                continue
            if starts and size > max_bytes:
                pieces.append(value[begin:position])
                return PlainRun(pieces, starts, body_bytes, is_cut=True)
            add_start(start)
            offset += 1
            start += size
            body_bytes += body_length
            max_bytes -= size
            position = stop
            if len(starts) == max_messages:
                pieces.append(value[begin:position])
                return PlainRun(pieces, starts, body_bytes, is_cut=True)
        if begin == end:  # damaged: it was asked for because its last record is at `offset` or behind it
            return None
        pieces.append(value[begin:end])
    return PlainRun(pieces, starts, body_bytes, is_cut=False)
