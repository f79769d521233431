"""The two hashes on which gateways and clients must agree. Source: protocol facts 10."""

from __future__ import annotations

from functools import lru_cache

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


@lru_cache(maxsize=8192)
def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, as a signed 32 bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = value * 31 + unit & _U32
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = value * 31 + (high << 8 | low) & _U32
    return value - (1 << 32) if value >> 31 else value


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
