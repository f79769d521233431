"""A segment of recent sends: message ids, and the results that their senders got.

The layout is by columns, so that packing takes a few calls: `last_ms`, `closed_ms`, the
numbers of sends and of handles; of each send its place and the length of its key; all keys;
then of each handle the number of its send, its length, and the handle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from brokers.embedded.storage.keys import SENT_MARK
from popgate.model import Sent

_HEAD = struct.Struct(">QQII")
_HANDLE = struct.Struct(">IH")
_PLACE = struct.Struct(">Q")
OFFSET_BITS = 48
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_LONGEST_KEY = (1 << 16) - 1
_TRANSACTION = b"t"
_RECALL = b"r"


@dataclass(slots=True, frozen=True)
class Segment:
    """`last_ms`: when its last send was. `closed_ms`: no send from then on is in it.

    `places` has, by key, the queue and the offset that a send was told; `handles` the transaction
    id or the recall handle of those that got one.
    """

    last_ms: int = 0
    closed_ms: int = 0
    places: dict[bytes, int] = field(default_factory=dict)
    handles: dict[bytes, bytes] = field(default_factory=dict)


def place_of(queue_id: int, offset: int) -> int:
    return queue_id << OFFSET_BITS | offset


def handle_of(sent: Sent) -> bytes:
    """The transaction id or the recall handle of a message that is held back."""
    if sent.transaction_id:
        return _TRANSACTION + sent.transaction_id.encode("utf-8", "surrogatepass")
    return _RECALL + sent.recall_handle.encode("utf-8", "surrogatepass")


def result_of(segment: Segment, key: bytes, broker: str) -> Sent | None:
    """What the sender was told."""
    place = segment.places.get(key)
    if place is None:
        return None
    message_id = key[: key.rindex(SENT_MARK)].decode("utf-8", "replace")
    sent = Sent(message_id, broker, place >> OFFSET_BITS, place & _OFFSET_MASK)
    handle = segment.handles.get(key)
    if handle is not None:
        text = handle[1:].decode("utf-8", "surrogatepass")
        if handle[:1] == _TRANSACTION:
            sent.transaction_id = text
        else:
            sent.recall_handle = text
    return sent


def encode_segment(segment: Segment) -> bytes:
    """Without keys that are too long for the layout: whether such a message comes again nobody can tell.

    Properties hold no id so long; but each byte that is no UTF-8 becomes a character of three bytes.
    """
    places, handles = segment.places, segment.handles
    if max(map(len, places), default=0) > _LONGEST_KEY:
        places = {key: place for key, place in places.items() if len(key) <= _LONGEST_KEY}
        handles = {key: handle for key, handle in handles.items() if key in places}
    keys = places.keys()
    count = len(keys)
    parts = [
        _HEAD.pack(segment.last_ms, segment.closed_ms, count, len(handles)),
        struct.pack(f">{count}Q", *places.values()),
        struct.pack(f">{count}H", *map(len, keys)),
        *keys,
    ]
    if handles:
        for number, key in enumerate(keys):
            handle = handles.get(key)
            if handle is not None:
                parts += (_HANDLE.pack(number, len(handle)), handle)
    return b"".join(parts)


def encode_held(place: int, handle: bytes) -> bytes:
    """One send of a segment that is still being filled."""
    return _PLACE.pack(place) + handle


def decode_held(value: bytes) -> tuple[int, bytes]:
    """Place and handle. Raises struct.error when it is damaged."""
    return _PLACE.unpack_from(value)[0], value[_PLACE.size :]


def keys_of(value: bytes) -> tuple[int, int, list[bytes]]:
    """`last_ms`, `closed_ms` and the keys. Raises struct.error when it is damaged."""
    last_ms, closed_ms, count, _ = _HEAD.unpack_from(value)
    return last_ms, closed_ms, _cut(value, count)[0]


def decode_segment(value: bytes) -> Segment:
    """Raises struct.error when it is damaged."""
    last_ms, closed_ms, count, handle_count = _HEAD.unpack_from(value)
    places = struct.unpack_from(f">{count}Q", value, _HEAD.size)
    keys, at = _cut(value, count)
    handles = {}
    for _ in range(handle_count):
        number, length = _HANDLE.unpack_from(value, at)
        at += _HANDLE.size
        if number >= count or at + length > len(value):
            raise struct.error(f"it has no handle of {length} bytes for send {number}")
        handles[keys[number]] = value[at : at + length]
        at += length
    return Segment(last_ms, closed_ms, dict(zip(keys, places, strict=True)), handles)


def _cut(value: bytes, count: int) -> tuple[list[bytes], int]:
    """The keys, and where they end. Raises struct.error when there is less."""
    lengths = struct.unpack_from(f">{count}H", value, _HEAD.size + _PLACE.size * count)
    begin = _HEAD.size + (_PLACE.size + 2) * count
    ends = list(accumulate(lengths, initial=begin))
    if ends[-1] > len(value):
        raise struct.error(f"{ends[-1]} bytes are told of, {len(value)} are there")
    return [value[at:end] for at, end in pairwise(ends)], ends[-1]
