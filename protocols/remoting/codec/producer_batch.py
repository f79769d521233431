"""Prepares what a classic producer sends for its broker, as it is: to forward it, or to store it packed.

Its messages are not decoded: only their lengths are read, and their properties are searched for names that
route or delay a message. Sources: protocol facts 3.6, 5.7 and 7.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from brokers.batches import MOST_BYTES, MOST_MESSAGES, Batch, Single
from popgate.messages.packed_messages import PackedMessages
from popgate.wire.messages.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    LONGEST_BLOCK,
    LONGEST_IN_BATCH,
    WAIT,
    find_property,
)
from processors.limits import Limits
from protocols.remoting.codec.messages import Head, shared_properties
from protocols.remoting.codec.property_columns import (
    column,
    each_split,
    even_values,
    is_even,
    only,
    valid,
    values_of,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_HEAD: Final = Struct(">I8xiI")
"""The size of a message with all its parts, its flag, and the length of its body."""
_unpack_head = _HEAD.unpack_from
_pack_size = Struct(">I").pack
_pack_length = Struct(">H").pack
_HEAD_SIZE: Final = _HEAD.size
_SMALLEST: Final = _HEAD_SIZE + 2
_WAIT = WAIT.encode()
_END: Final = 2
"""The byte that ends a property."""


class _Places(NamedTuple):
    """The messages of a batch, each column with an entry for each of them."""

    starts: Sequence[int]
    body_ends: Sequence[int]
    flags: list[int]
    blocks: list[bytes]
    """Their properties; a message ends where its block does."""
    together: bytes
    """All blocks, each with an end behind it."""
    size: int
    """Of each message, if they are `is_even`; 0: they are not."""


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
    birth = _birth(born_host, born_ms)
    ended_birth = b"\x02" + birth
    places = _places(head, body, limits, LONGEST_IN_BATCH - len(ended_birth))
    if places is None:
        return None
    first_message_id = only(places.blocks[0], b"UNIQ_KEY\x01")
    if b"UNIQ_KEY\x01\x02" in places.together:
        return None
    parts: list[bytes] = []
    body_bytes = 0
    last_size, last_length = -1, -1
    size_bytes = length_bytes = b""
    for start, body_end, block in zip(places.starts, places.body_ends, places.blocks, strict=True):
        if not (block.startswith(b"UNIQ_KEY\x01") or b"\x02UNIQ_KEY\x01" in block):
            return None
        added = birth if block[-1] == _END else ended_birth
        size, length = body_end - start, len(block) + len(added)
        if size != last_size or length != last_length:
            last_size, last_length = size, length
            size_bytes, length_bytes = _pack_size(size + 2 + length), _pack_length(length)
        parts += (size_bytes, body[start + 4 : body_end], length_bytes, block, added)
        body_bytes += size
    data = b"".join(parts)
    count = len(places.blocks)
    if not first_message_id or len(data) > MOST_BYTES:
        return None
    batch = Batch(
        topic,
        head.broker,
        head.queue_id,
        data,
        count,
        body_bytes - _HEAD_SIZE * count,
        head.sys_flag,
        head.group,
        born_ms,
    )
    return PackedBatch(batch, first_message_id.decode("utf-8", "replace"))


def plain_message(
    head: Head, body: bytes, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> Single | None:
    """The one message of a send; None: it has to be checked as `message_in` does it.

    That is so as for a message of a batch, and for one without a body.
    """
    block, size = head.properties, len(body)
    if not head.broker or head.once or head.queue_id < 0 or head.reconsumed or not size:
        return None
    born_ms = head.born_ms or now_ms
    birth = _birth(born_host, born_ms)
    length, most_properties = len(block), limits.max_properties
    if (
        length > limits.max_properties_bytes
        or length + len(birth) >= LONGEST_BLOCK
        or size > limits.max_body_bytes > 0
        # One that is shorter than that has no more.
        or (length > most_properties and block.count(b"\x01") > most_properties)
    ):
        return None
    message_id = only(block, b"UNIQ_KEY\x01")
    if not message_id or not _has_no_special(block, 1):
        return None
    return Single(
        topic,
        head.broker,
        head.queue_id,
        body,
        message_id.decode("utf-8", "replace"),
        block + birth if block[-1] == _END else block + b"\x02" + birth,
        head.sys_flag,
        head.flag,
        head.group,
        born_ms,
    )


def pack_messages(
    head: Head, body: bytes, *, topic: str, born_host: str, now_ms: int, limits: Limits
) -> PackedMessages | None:
    """The messages in `body`, as they are stored; None as `pack_batch`, and for an id that is no text."""
    places = _places(head, body, limits, LONGEST_IN_BATCH)
    if places is None:
        return None
    blocks = places.blocks
    together = places.together
    size = places.size
    if size:
        ids = even_values(body, size, blocks, together, b"UNIQ_KEY\x01")
        keys = even_values(body, size, blocks, together, b"KEYS\x01")
        bodies = column(body, _HEAD_SIZE, places.body_ends[0], size)
    else:
        ids, keys = values_of(blocks, together, b"UNIQ_KEY\x01"), values_of(blocks, together, b"KEYS\x01")
        bodies = [
            body[start + _HEAD_SIZE : end] for start, end in zip(places.starts, places.body_ends, strict=True)
        ]
    if ids is None or keys is None or not all(ids):
        return None
    try:
        b"\x02".join(ids).decode()
    except UnicodeDecodeError:
        return None
    count = len(blocks)
    return PackedMessages(
        topic,
        ids,
        bodies,
        blocks,
        places.flags,
        head.sys_flag,
        head.group,
        [(head.born_ms or now_ms, born_host)] * count,
        each_split(valid(keys)),
        head.broker,
        head.queue_id,
        not head.once,
    )


# -- inside -------------------------------------------------------------------------------------------


def _places(head: Head, body: bytes, limits: Limits, longest: int) -> _Places | None:
    """The places of all messages. None: one is damaged, exceeds a limit, or may have special properties."""
    if head.queue_id < 0 or head.reconsumed or shared_properties(head):
        return None
    longest = min(limits.max_properties_bytes, longest)
    most_body, least_body = limits.max_body_bytes or len(body), 1 if limits.refuse_empty_bodies else 0
    at: i64 = 0
    end: i64 = len(body)
    size: i64 = 0
    body_length: i64 = 0
    flag, most_length, even = 0, 0, 0
    # Messages of one producer are mostly alike: what tells their lengths is read of one, and compared for
    # those that follow.
    head_bytes = length_bytes = b""
    starts: list[int] = []
    body_ends: list[int] = []
    flags: list[int] = []
    blocks: list[bytes] = []
    most_messages = min(limits.max_messages_per_send, MOST_MESSAGES)
    for _ in range(most_messages):
        if at == end:
            break
        if end - at < _SMALLEST:
            return None
        here = body[at : at + _HEAD_SIZE]  # a slice is compared in half the time that `startswith` takes
        if here != head_bytes:
            head_bytes = here
            size, flag, body_length = _unpack_head(body, at)
            length: i64 = size - body_length - _SMALLEST
            if not 0 <= length <= longest or not least_body <= body_length <= most_body:
                return None
            length_bytes = _pack_length(length)
            most_length = max(most_length, length)
            if at == 0 and end <= size * most_messages and is_even(body, here, body_length, length_bytes):
                # The rest of the loop for all of them.
                blocks = column(body, _HEAD_SIZE + body_length + 2, size, size)
                flags = [flag] * len(blocks)
                even = size
                at = end
                break
        stop: i64 = at + size
        body_end: i64 = at + _HEAD_SIZE + body_length
        if stop > end or body[body_end : body_end + 2] != length_bytes:
            return None
        starts.append(at)
        body_ends.append(body_end)
        flags.append(flag)
        blocks.append(body[body_end + 2 : stop])
        at = stop
    if at < end or not blocks:
        return None
    # What is nowhere in all of them is in none, and who has fewer bytes than that has no more.
    together = b"\x02".join(blocks) + b"\x02"
    most = limits.max_properties
    if (
        most_length > most
        and together.count(b"\x01") > most
        and any(_count(block) > most for block in blocks)
    ):
        return None
    if not _has_no_special(together, len(blocks)) and any(map(_may_be_special, blocks)):
        return None
    if b"WAIT\x01" in together and any(map(_waits_not, blocks)):
        return None
    if even:
        body_end = _HEAD_SIZE + body_length
        return _Places(range(0, end, even), range(body_end, end, even), flags, blocks, together, even)
    return _Places(starts, body_ends, flags, blocks, together, 0)


def _count(block: bytes) -> int:
    return block.count(b"\x01")


def _birth(born_host: str, born_ms: int) -> bytes:
    """The properties that say when and where a message was born."""
    host = f"{BORN_HOST}\x01{born_host}\x02" if born_host else ""
    return f"{host}{BORN_TIMESTAMP}\x01{born_ms}\x02".encode()


def _has_no_special(blocks: bytes, count: int) -> bool:
    """Whether none of so many blocks, each of which has an id, is `_may_be_special`; False: it may be.

    With no underscore but that in UNIQ_KEY there is only one such name left.
    """
    if blocks.count(b"_") == count:
        return b"DELAY\x01" not in blocks
    return not _may_be_special(blocks)


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
