"""The body of a batch: several messages of one topic and queue in one send. Source: protocol facts 5.7."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.messages.properties import LONGEST_BLOCK

_HEAD: Final = Struct(">IIIiI")
"""total size, magic (0), checksum (0), flag, length of the body"""
_SHORT: Final = Struct(">h")
_SMALLEST: Final = _HEAD.size + _SHORT.size


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def size_in_batch(count: int) -> int:
    """The overhead of so many messages in a batch, besides their bodies and properties."""
    return _SMALLEST * count


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Of items, or what is like them. Raises LocalWireError when properties are too long for the layout."""
    parts: list[bytes] = []
    head = short = b""
    body_length = length = -1
    head_flag = 0
    for flag, body, properties in items:
        if len(properties) != length or len(body) != body_length or flag != head_flag:
            # Messages of one sender are mostly alike: what tells their lengths is packed once for several.
            body_length, length, head_flag = len(body), len(properties), flag
            if length > LONGEST_BLOCK:
                raise LocalWireError(f"the properties have {length} bytes, a batch holds {LONGEST_BLOCK}")
            head = _HEAD.pack(_SMALLEST + body_length + length, 0, 0, flag, body_length)
            short = _SHORT.pack(length)
        parts += (head, body, short, properties)
    return b"".join(parts)


def decode_batch(data: bytes, most: int | None = None) -> list[BatchItem]:
    """Raises PeerWireError for anything damaged, and for more messages than `most`."""
    items: list[BatchItem] = []
    at = 0
    while at < len(data):
        if most is not None and len(items) >= most:
            raise PeerWireError(f"a batch has more than {most} messages")
        item, at = _item(data, at)
        items.append(item)
    return items


def first_item(data: bytes) -> BatchItem:
    """The first message of a batch that has one. Raises PeerWireError when it is damaged."""
    return _item(data, 0)[0]


def _item(data: bytes, at: int) -> tuple[BatchItem, int]:
    """The message that begins at `at`, and where it ends."""
    left = len(data) - at
    if left < _SMALLEST:
        raise PeerWireError(f"a message of a batch needs {_SMALLEST} bytes, there are {left}")
    size, _, _, flag, body_length = _HEAD.unpack_from(data, at)
    if not _SMALLEST <= size <= left or body_length > size - _SMALLEST:
        raise PeerWireError(
            f"a message of a batch claims {size} bytes with a body of {body_length}, there are {left}"
        )
    body_at = at + _HEAD.size
    properties_at = body_at + body_length + _SHORT.size
    (length,) = _SHORT.unpack_from(data, properties_at - _SHORT.size)
    if properties_at + length != at + size:
        raise PeerWireError(
            f"a message of a batch claims {length} bytes of properties, which is not the rest"
        )
    body = data[body_at : body_at + body_length]
    return BatchItem(flag, body, data[properties_at : at + size]), at + size
