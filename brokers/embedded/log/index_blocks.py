"""Entries of the index for messages that are stored together: one block for all of them.

An entry of its own for each id and each key is found at once, but RocksDB takes longer to sort and to merge
them than to store a small message. The checksums of a whole batch in one value cost next to nothing to store,
and a look-up goes through the blocks of its topic, at some 2 µs each, hour by hour.

A block begins with how many ids and how many keys it has and which of them have a list of places; then the
checksums of the ids, those of the keys, and these lists. Without a list the first text is that of the first
message, and so on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from brokers.embedded.storage.keys import HIGHEST_U64, ID_KIND
from popgate.wire.checksum import crc32

BLOCK: Final = HIGHEST_U64
"""In a key of `index` in the place of a hash; its offset is that of the first message."""
LEAST: Final = 16
"""Messages of a block. With fewer in each there would be too many blocks to look through."""
MOST: Final = 65_535

_HEAD: Final = struct.Struct(">HHB")
_IDS_LISTED: Final = 1
_KEYS_LISTED: Final = 2


def fits_block(ids: Sequence[bytes], keys: Sequence[Sequence[bytes]]) -> bool:
    """Whether the ids and keys of so many messages go into one block."""
    return LEAST <= len(ids) <= MOST and sum(map(len, keys)) <= MOST


def encode_block(ids: Sequence[bytes], keys: Sequence[Sequence[bytes]]) -> bytes:
    """The block of messages with these ids, empty where one has none, and these keys."""
    flags = 0
    lists = b""
    everyone = range(len(ids))
    named, of_ids = each(ids, everyone)
    flat, of_keys = each_of_several(keys, everyone)
    for places, listed in ((of_ids, _IDS_LISTED), (of_keys, _KEYS_LISTED)):
        if places is not everyone:
            flags |= listed
            lists += b"".join(place.to_bytes(2, "big") for place in places)
    checksums = struct.pack(f">{len(named) + len(flat)}I", *map(crc32, named), *map(crc32, flat))
    return _HEAD.pack(len(named), len(flat), flags) + checksums + lists


def places_in(block: bytes, wanted: int) -> list[int]:
    """Which of a block's messages may have the text with this hash (`keys.text_hash`), in their order."""
    ids, keys, flags = _HEAD.unpack_from(block)
    of_ids = wanted & 0xFF == ID_KIND
    begin = _HEAD.size if of_ids else _HEAD.size + 4 * ids
    end = begin + 4 * (ids if of_ids else keys)
    checksum = (wanted >> 8).to_bytes(4, "big")
    hits: list[int] = []
    at = block.find(checksum, begin, end)
    while at >= 0:
        if (at - begin) % 4:
            at = block.find(checksum, at + 1, end)
            continue
        hits.append((at - begin) // 4)
        at = block.find(checksum, at + 4, end)
    if hits and flags & (_IDS_LISTED if of_ids else _KEYS_LISTED):
        lists = _HEAD.size + 4 * (ids + keys)
        if not of_ids and flags & _IDS_LISTED:
            lists += 2 * ids
        hits = [int.from_bytes(block[lists + 2 * at : lists + 2 * at + 2], "big") for at in hits]
    return list(dict.fromkeys(hits))


def each(texts: Sequence[bytes], offsets: Iterable[int]) -> tuple[Sequence[bytes], Iterable[int]]:
    """The texts that are not empty, one of a message, and the offset of each."""
    if all(texts):
        return texts, offsets
    return [text for text in texts if text], [
        offset for text, offset in zip(texts, offsets, strict=True) if text
    ]


def each_of_several(
    texts: Sequence[Sequence[bytes]], offsets: Iterable[int]
) -> tuple[Sequence[bytes], Iterable[int]]:
    """The texts of messages that have several, one or none, and the offset of each."""
    flat = list(chain.from_iterable(texts))
    if len(flat) == len(texts) and all(texts):
        return flat, offsets
    return flat, [offset for several, offset in zip(texts, offsets, strict=True) for _ in several]
