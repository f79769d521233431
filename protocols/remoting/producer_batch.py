"""A classic producer's batch, made ready to be forwarded in one piece.

Its messages are not decoded: only their lengths are read, and their properties are searched for names that
route or delay a message. The time and place of birth are added to each, since a broker takes the gateway
for the sender. Sources: protocol facts 3.6, 5.7 and 7.8.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from brokers.batches import MOST_BYTES, MOST_MESSAGES, Batch
from popgate.wire.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    LONGEST_IN_BATCH,
    UNIQ_KEY,
    WAIT,
    find_property,
)
from processors.limits import Limits
from protocols.remoting.messages import Head, shared_properties

_HEAD: Final = Struct(">I12xI")
"""The size of a message with all its parts, and the length of its body."""
_unpack_head = _HEAD.unpack_from
_pack_size = Struct(">I").pack
_pack_length = Struct(">H").pack
_SMALLEST: Final = _HEAD.size + 2
_UNIQ_KEY, _WAIT = UNIQ_KEY.encode(), WAIT.encode()


class PackedBatch(NamedTuple):
    """`first_message_id`: the id that the first message has of its producer."""

    batch: Batch
    first_message_id: str


def pack_batch(
    head: Head, body: bytes, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> PackedBatch | None:
    """The batch in `body`; None: its messages have to be decoded and checked one by one.

    That is so when one of them is damaged, exceeds a limit, has no id, or may not be of type NORMAL.
    """
    if head.queue_id < 0 or not head.broker or head.once or head.reconsumed:
        return None
    if shared_properties(head):
        return None
    born_ms = head.born_ms or now_ms
    host = f"{BORN_HOST}\x01{born_host}\x02" if born_host else ""
    birth = f"{host}{BORN_TIMESTAMP}\x01{born_ms}\x02".encode()
    longest = min(limits.max_properties_bytes, LONGEST_IN_BATCH - len(birth) - 1)
    most_body, most_properties = limits.max_body_bytes or len(body), limits.max_properties
    least_body = 1 if limits.refuse_empty_bodies else 0
    most = min(limits.max_messages_per_send, MOST_MESSAGES)
    parts: list[bytes] = []
    at, end, count, body_bytes, first_message_id = 0, len(body), 0, 0, b""
    while at < end:
        if end - at < _SMALLEST:
            return None
        size, body_length = _unpack_head(body, at)
        stop, length_at = at + size, at + _HEAD.size + body_length
        block_at = length_at + 2
        if stop > end or block_at > stop or not least_body <= body_length <= most_body:
            return None
        block = body[block_at:stop]
        length = len(block)
        if (
            body[length_at] << 8 | body[length_at + 1] != length
            or length > longest
            or block.count(b"\x01") > most_properties
            or _may_be_special(block)
        ):
            return None
        if count == most:
            return None
        if not count:
            first_message_id = find_property(block, _UNIQ_KEY) or b""
        if not _has_id(block):
            return None
        added = birth if block[-1] == 2 else b"\x02" + birth
        grown = len(added)
        parts += (
            _pack_size(size + grown),
            body[at + 4 : length_at],
            _pack_length(length + grown),
            block,
            added,
        )
        count += 1
        body_bytes += body_length
        at = stop
    data = b"".join(parts)
    if not first_message_id or len(data) > MOST_BYTES:
        return None
    batch = Batch(
        topic,
        head.broker,
        head.queue_id,
        data,
        count,
        body_bytes,
        head.sys_flag,
        head.group,
        born_ms,
    )
    return PackedBatch(batch, first_message_id.decode("utf-8", "replace"))


def _has_id(block: bytes) -> bool:
    return (
        (block.startswith(b"UNIQ_KEY\x01") or b"\x02UNIQ_KEY\x01" in block)
        and b"UNIQ_KEY\x01\x02" not in block
        and not block.endswith(b"UNIQ_KEY\x01")
    )


def _may_be_special(block: bytes) -> bool:
    """Whether a block of properties may have one that routes or delays its message, or tells its birth.

    Longer names that contain such a name count as well.
    """
    return (
        b"BORN" in block
        or b"__SHARDINGKEY" in block
        or b"DELAY\x01" in block
        or b"TIMER_DEL" in block
        or b"TRAN_MSG" in block
        or b"__LITE_TOPIC" in block
        or b"_PRIORITY_" in block
        or b"CORRELATION_ID" in block
        or (b"WAIT\x01" in block and (find_property(block, _WAIT) or b"").lower() != b"true")
    )
