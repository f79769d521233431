"""One header in HPACK's form, and the parts of headers that all connections share."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from popgate.errors import shown
from protocols.grpc.http2.hpack.huffman import decode

OVERHEAD: Final = 32
"""Bytes that a field counts for beside its name and value (section 4.1)."""
LONGEST_SHARED: Final = 192
"""Bytes of a name or a value that is kept for the whole process."""
lawful_name: Final = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
unlawful_value: Final = re.compile(rb"[\0\r\n]").search
"""RFC 9113 section 8.2.1. Whitespace at both ends is forbidden, too; it does no harm."""


class Field:
    """A header: immutable to its users, who share it.

    `bad`: the name is invalid in HTTP/2: empty, with capital letters or with characters outside of a token
    (the colon of a pseudo header is allowed).
    `foul`: the value has a character that none may have.
    `size`: bytes as section 4.1 counts them.
    """

    __slots__ = ("_value", "bad", "foul", "name", "size")

    def __init__(self, name: str, bad: bool, raw: bytes, size: int) -> None:
        self.name = name
        self.bad = bad
        self.foul = unlawful_value(raw) is not None
        self._value: bytes | str = raw  # only one of both: tables are what idle connections consist of
        self.size = size

    @property
    def raw(self) -> bytes:
        """The bytes of the value."""
        value = self._value
        return value.encode() if isinstance(value, str) else value

    @property
    def text(self) -> str:
        """The value as UTF-8, and kept as that, or as Latin-1 if it is not."""
        value = self._value
        if isinstance(value, str):
            return value
        try:
            text = self._value = value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
        return text

    def __repr__(self) -> str:
        return f"<Field {self.name}: {shown(self.text)}>"


def name_of(raw: bytes, coded: bool) -> tuple[str, bool]:
    """A name, and whether it is unlawful. Raises HpackError."""
    name = (decode(raw) if coded else raw).decode("latin-1")
    return name, lawful_name(name) is None


def decoded_field(name: str, bad: bool, raw: bytes, coded: bool) -> Field:
    """A field with a value that is decoded. Raises HpackError."""
    if coded:
        raw = decode(raw)
    return Field(name, bad, raw, OVERHEAD + len(name) + len(raw))


known_name: Final = lru_cache(maxsize=512)(name_of)
shared_field: Final = lru_cache(maxsize=1024)(decoded_field)
