"""Encodes header blocks of HTTP/2 for a server: without state, so that equal lists give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from popgate.errors import LocalWireError, shown
from protocols.grpc.http2.hpack.header_field import lawful_name, unlawful_value
from protocols.grpc.http2.hpack.static_table import STATIC_TABLE

_WHOLE: Final = {pair: bytes((128 + at,)) for at, pair in enumerate(STATIC_TABLE, 1)}
_NAMED: Final = {name: at for at, (name, _) in reversed([*enumerate(STATIC_TABLE, 1)])}


def encode_fields(fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    """A header block that any decoder reads, whatever was said before; text is written as UTF-8.

    Entries of the static table and literals without indexing, no Huffman. Raises LocalWireError for
    names and values that HTTP/2 forbids (RFC 9113 section 8.2.1).
    """
    parts: list[bytes] = []
    for field in fields:
        whole = _WHOLE.get(field)  # type: ignore[arg-type]
        if whole is not None:
            parts.append(whole)
            continue
        name, value = field
        if isinstance(value, str):
            value = value.encode()
        if unlawful_value(value) is not None:
            raise LocalWireError(f"the value of header {shown(name)} has characters that none may have")
        parts.append(_name_part(name))
        parts.append(_length(len(value), 127) if len(value) > 126 else _SHORT[len(value)])
        parts.append(value)
    return b"".join(parts)


@lru_cache(maxsize=512)
def _name_part(name: str) -> bytes:
    """How a literal without indexing begins, up to its value."""
    number = _NAMED.get(name)
    if number is not None:
        return _length(number, 15)
    if lawful_name(name) is None:
        raise LocalWireError(f"header name {shown(name)} is unlawful")
    raw = name.encode()
    return b"\0" + _length(len(raw), 127) + raw


def _length(number: int, prefix: int) -> bytes:
    """A number behind a prefix whose bits, all ones, are `prefix`; the bits in front are zeros."""
    if number < prefix:
        return bytes((number,))
    number -= prefix
    out = bytearray((prefix,))
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final = tuple(_length(length, 127) for length in range(127))
