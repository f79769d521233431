"""Compressed bodies: recognised by their first bytes, decompressed within a limit.

Official clients disagree on what "compressed" means, so the bytes decide, not the label: gzip,
zlib, LZ4 frame or Zstandard. Source: protocol facts 3.8 and 9.3 (31). LZ4 and Zstandard need the
packages `lz4`, which Spark's executors may lack, and `zstandard` (`popgate[fast]`).
"""

from __future__ import annotations

import gzip
import zlib
from enum import Enum, unique
from typing import Any

from popgate.errors import PeerWireError, Unsupported

_GZIP_MAGIC = b"\x1f\x8b"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_OR_ZLIB_WINDOW = 32 + 15
_ALWAYS_BORNE = 4 * 1024 * 1024 + 64 * 1024
"""Bytes: one message of RocketMQ's largest body, whatever it was compressed to."""
_MOST_RATIO = 100
_MOST_GZIP_MEMBERS = 64
"""Each one costs a copy of the rest, so that a body of empty ones would take quadratic time."""


@unique
class Compression(Enum):
    """Values are the names in the sentences."""

    GZIP = "gzip"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


def compression_of(body: bytes) -> Compression | None:
    """How a body seems to be compressed; None when it begins like none of the four."""
    if body.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    if body.startswith(_LZ4_MAGIC):
        return Compression.LZ4
    if body.startswith(_ZSTD_MAGIC):
        return Compression.ZSTD
    # RFC 1950: method 8, and the first two bytes are a multiple of 31.
    if len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0:
        return Compression.ZLIB
    return None


def borne(packed: bytes, most: int) -> int:
    """To how many bytes of at most `most` something compressed may come: a bomb is one that comes to more."""
    return min(most, max(_ALWAYS_BORNE, _MOST_RATIO * len(packed)))


def decompress(body: bytes, limit: int) -> bytes:
    """The plain body, of at most `limit` bytes; no more than that is ever decompressed.

    Raises PeerWireError for a body that is damaged, truncated, too large, or of unknown compression,
    and Unsupported when the package for it is not installed.
    """
    kind = compression_of(body)
    if kind is None:
        raise PeerWireError("the body is compressed in no known way (gzip, zlib, lz4, zstd)")
    if kind is Compression.LZ4:
        return _decompress_lz4(body, limit)
    if kind is Compression.ZSTD:
        return _decompress_zstd(body, limit)
    return _decompress_deflate(body, limit, kind)


def compress_gzip(body: bytes, level: int = 5) -> bytes:
    return gzip.compress(body, level, mtime=0)


def compress_zlib(body: bytes, level: int = 5) -> bytes:
    return zlib.compress(body, level)


def compress_lz4(body: bytes) -> bytes:
    """Raises Unsupported without the package `lz4`."""
    packed: bytes = _lz4_frames().compress(body)
    return packed


def compress_zstd(body: bytes, level: int = 3) -> bytes:
    """Raises Unsupported without the package `zstandard`."""
    packed: bytes = _zstandard().ZstdCompressor(level=level).compress(body)
    return packed


def _decompress_deflate(body: bytes, limit: int, kind: Compression) -> bytes:
    plain: list[bytes] = []
    left = limit
    for _ in range(_MOST_GZIP_MEMBERS):
        machine = zlib.decompressobj(_GZIP_OR_ZLIB_WINDOW)
        try:
            part = machine.decompress(body, left + 1)
        except zlib.error as error:
            raise PeerWireError(f"the {kind.value} body is damaged: {error}") from error
        left -= len(part)
        if left < 0:
            raise _too_large(kind, limit)
        if not machine.eof:
            raise PeerWireError(f"the {kind.value} body is cut off")
        plain.append(part)
        body = machine.unused_data
        # A gzip file may have several members (RFC 1952, 2.2).
        if kind is not Compression.GZIP or not body.startswith(_GZIP_MAGIC):
            return plain[0] if len(plain) == 1 else b"".join(plain)
    raise PeerWireError(f"the gzip body has more than {_MOST_GZIP_MEMBERS} members")


def _decompress_lz4(body: bytes, limit: int) -> bytes:
    machine = _lz4_frames().LZ4FrameDecompressor()
    try:
        plain: bytes = machine.decompress(body, max_length=limit + 1)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise PeerWireError(f"the lz4 body is damaged: {error}") from error
    if len(plain) > limit:
        raise _too_large(Compression.LZ4, limit)
    if not machine.eof:
        raise PeerWireError("the lz4 body is cut off")
    return plain


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    zstandard = _zstandard()
    try:
        # A frame that tells its size is unpacked into that size, whatever the limit says.
        content_size = zstandard.get_frame_parameters(body).content_size
        if content_size > limit and content_size != zstandard.CONTENTSIZE_UNKNOWN:
            raise _too_large(Compression.ZSTD, limit)
        plain: bytes = zstandard.ZstdDecompressor().decompress(body, max_output_size=limit + 1)
    except zstandard.ZstdError as error:
        raise PeerWireError(f"the zstd body is damaged, cut off or above {limit} bytes: {error}") from error
    if len(plain) > limit:
        raise _too_large(Compression.ZSTD, limit)
    return plain


def _too_large(kind: Compression, limit: int) -> PeerWireError:
    return PeerWireError(f"the {kind.value} body unpacks to more than {limit} bytes")


def _lz4_frames() -> Any:
    try:
        import lz4.frame
    except ImportError as error:
        raise Unsupported("an lz4 body without the package lz4 (install lz4)") from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported("a zstd body without the package zstandard (install popgate[fast])") from error
    return zstandard
