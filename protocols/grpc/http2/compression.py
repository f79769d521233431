"""Compressed messages. Their size limit depends on their compressed size, so that a bomb costs little."""

from __future__ import annotations

import zlib
from typing import Final

GZIP: Final = "gzip"
_ALWAYS_BORNE: Final = 4 * 1024 * 1024 + 64 * 1024
"""Bytes: one message of RocketMQ's largest body, whatever it was compressed to."""
_MOST_RATIO: Final = 100


class Unpackable(Exception):
    """It is no gzip, or has no end, or something behind it."""


class TooLarge(Exception):
    """The decompressed message exceeds `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a message has more than {limit} bytes, the limit")
        self.limit = limit


def packed(message: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(message) + packer.flush()


def borne(message: bytes, most: int) -> int:
    """To how many bytes a compressed message may come, and is unpacked at the most."""
    return min(most, max(_ALWAYS_BORNE, _MOST_RATIO * len(message)))


def unpacked(message: bytes, most: int) -> bytes:
    """At most `most` bytes. Raises Unpackable, and TooLarge without unpacking more than is borne."""
    limit = borne(message, most)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(message, limit + 1)
    except zlib.error:
        raise Unpackable("a compressed message cannot be read") from None
    if len(data) > limit:
        raise TooLarge(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Unpackable("a compressed message has no end, or something behind it")
    return data
