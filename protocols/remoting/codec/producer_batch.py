"""Prepares a classic producer's batch for its broker in one piece: to forward it, or to store it packed.

Its messages are not decoded: only their lengths are read, and their properties are searched for names that
route or delay a message. Sources: protocol facts 3.6, 5.7 and 7.8.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from brokers.batches import MOST_BYTES, MOST_MESSAGES, Batch
from popgate.messages.packed_messages import PackedMessages
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP, LONGEST_IN_BATCH, WAIT, find_property
from processors.limits import Limits
from protocols.remoting.codec.messages import Head, shared_properties

_HEAD: Final = Struct(">I8xiI")
"""The size of a message with all its parts, its flag, and the length of its body."""
_unpack_head = _HEAD.unpack_from
_pack_size = Struct(">I").pack
_pack_length = Struct(">H").pack
_SMALLEST: Final = _HEAD.size + 2
_WAIT = WAIT.encode()
_Place = tuple[int, int, int, int, bytes]
"""Of a message: where it begins, where its body ends and itself, its flag, and its properties."""


class PackedBatch(NamedTuple):
    """`first_message_id`: the id that the first message has of its producer."""

    batch: Batch
    first_message_id: str


def pack_batch(
    head: Head, body: bytes, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> PackedBatch | None:
    """The batch in `body`; None: its messages have to be decoded and checked one by one.

    That is so when one of them is damaged, exceeds a limit, has no id, or may not be of type NORMAL. The time
    and place of birth are added to each, since a broker takes the gateway for the sender.
    """
    if not head.broker or head.once:
        return None
    born_ms = head.born_ms or now_ms
    host = f"{BORN_HOST}\x01{born_host}\x02" if born_host else ""
    birth = f"{host}{BORN_TIMESTAMP}\x01{born_ms}\x02".encode()
    places = _places(head, body, limits, LONGEST_IN_BATCH - len(birth) - 1)
    if places is None:
        return None
    first_message_id = _only(places[0][4], b"UNIQ_KEY\x01")
    parts: list[bytes] = []
    body_bytes = 0
    for start, length_at, stop, _, block in places:
        if not _has_id(block):
            return None
        added = birth if block[-1] == 2 else b"\x02" + birth
        grown = len(added)
        parts += (
            _pack_size(stop - start + grown),
            body[start + 4 : length_at],
            _pack_length(len(block) + grown),
            block,
            added,
        )
        body_bytes += length_at - start
    data = b"".join(parts)
    count = len(places)
    if not first_message_id or len(data) > MOST_BYTES:
        return None
    batch = Batch(
        topic,
        head.broker,
        head.queue_id,
        data,
        count,
        body_bytes - _HEAD.size * count,
        head.sys_flag,
        head.group,
        born_ms,
    )
    return PackedBatch(batch, first_message_id.decode("utf-8", "replace"))


def pack_messages(
    head: Head, body: bytes, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> PackedMessages | None:
    """The messages in `body`, as they are stored; None as `pack_batch`, and for an id that is no text."""
    places = _places(head, body, limits, LONGEST_IN_BATCH)
    if places is None:
        return None
    ids, keys = [], []
    for *_, block in places:
        message_id = _only(block, b"UNIQ_KEY\x01")
        if not message_id:
            return None
        ids.append(message_id)
        named = _only(block, b"KEYS\x01")
        if named is None:
            return None
        keys.append(named)
    count = len(places)
    try:
        message_ids = b"\x02".join(ids).decode().split("\x02")
    except UnicodeDecodeError:
        return None
    return PackedMessages(
        topic,
        message_ids,
        [body[start + _HEAD.size : length_at] for start, length_at, *_ in places],
        [block for *_, block in places],
        [flag for *_, flag, _ in places],
        head.sys_flag,
        head.group,
        [(head.born_ms or now_ms, born_host)] * count,
        [tuple(filter(None, named.decode("utf-8", "replace").split(" "))) for named in keys],
        head.broker,
        head.queue_id,
        not head.once,
    )


# -- inside -------------------------------------------------------------------------------------------


def _places(head: Head, body: bytes, limits: Limits, longest: int) -> list[_Place] | None:
    """The places of all messages. None: one is damaged, exceeds a limit, or may have special properties."""
    if head.queue_id < 0 or head.reconsumed or shared_properties(head):
        return None
    longest = min(limits.max_properties_bytes, longest)
    most_body, most_properties = limits.max_body_bytes or len(body), limits.max_properties
    least_body = 1 if limits.refuse_empty_bodies else 0
    most = min(limits.max_messages_per_send, MOST_MESSAGES)
    # What is nowhere in the batch is in none of its messages.
    may_be_special, may_wait = _may_be_special(body), b"WAIT\x01" in body
    places: list[_Place] = []
    at, end = 0, len(body)
    while at < end:
        if end - at < _SMALLEST:
            return None
        size, flag, body_length = _unpack_head(body, at)
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
            or (may_be_special and _may_be_special(block))
            or (may_wait and _waits_not(block))
            or len(places) == most
        ):
            return None
        places.append((at, length_at, stop, flag, block))
        at = stop
    return places or None


def _only(block: bytes, name: bytes) -> bytes | None:
    """The value of a property, empty where there is none; None: the name is there twice, or in another."""
    at = block.find(name)
    if at < 0:
        return b""
    begin = at + len(name)
    if (at and block[at - 1] != 2) or block.find(name, begin) >= 0:
        return None
    end = block.find(b"\x02", begin)
    return block[begin:end] if end >= 0 else block[begin:]


def _has_id(block: bytes) -> bool:
    return (
        (block.startswith(b"UNIQ_KEY\x01") or b"\x02UNIQ_KEY\x01" in block)
        and b"UNIQ_KEY\x01\x02" not in block
        and not block.endswith(b"UNIQ_KEY\x01")
    )


def _may_be_special(block: bytes) -> bool:
    """Whether a block of properties may have one that routes or delays its message, or sets its birth time.

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
    )


def _waits_not(block: bytes) -> bool:
    """Whether a property WAIT asks for what brokers do not do anyway."""
    return b"WAIT\x01" in block and (find_property(block, _WAIT) or b"").lower() != b"true"
