"""Compressed messages. Their size limit depends on their compressed size, so that a bomb costs little."""

from __future__ import annotations

import zlib
from typing import Final

from popgate.wire.messages.compression import borne

GZIP: Final = "gzip"


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
