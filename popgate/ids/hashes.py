"""The two hashes that gateways and clients must compute alike. Source: protocol facts 10."""

from __future__ import annotations

from functools import lru_cache

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_SHORT = 256
"""Characters of a text whose hash is kept among many; of longer ones, tags of up to 32 KiB, few are kept."""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, as a signed 32 bit number."""
    return _short_hash(text) if len(text) <= _SHORT else _long_hash(text)


def _hash(text: str) -> int:
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = value * 31 + unit & _U32
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = value * 31 + (high << 8 | low) & _U32
    return value - (1 << 32) if value >> 31 else value


_short_hash = lru_cache(maxsize=8192)(_hash)
_long_hash = lru_cache(maxsize=64)(_hash)


def consistent_hash(value: int, buckets: int) -> int:
    """The bucket, in [0, buckets), of a 64 bit value; Lamping and Veach's jump hash, as Guava has it.

    Raises ValueError when there is no bucket.
    """
    if buckets < 1:
        raise ValueError(f"{buckets} buckets are none to choose from")
    state = value & _U64
    bucket, following = 0, 0
    while 0 <= following < buckets:
        bucket = following
        state = (2862933555777941757 * state + 1) & _U64
        following = int((bucket + 1) / (((state >> 33) + 1) / 2147483648.0))
    return bucket
