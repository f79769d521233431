"""Decodes header blocks of HTTP/2 (RFC 7541) with as little work as a block allows.

Most blocks of a client consist of references to earlier fields. A block that was decoded since the
table last changed gives the very same tuple again, so a caller can cache what it derives from a tuple
by its identity. Otherwise fields of the tables are shared objects, and values stay bytes until
their text is requested. Huffman codes are decoded with the block, since an invalid one
ends the connection (RFC 7541 section 5.2); few clients send any that does not enter the table.
"""

from __future__ import annotations

from operator import length_hint
from typing import Final

from popgate.errors import PeerWireError
from protocols.grpc.http2.hpack.encoder import encode_fields
from protocols.grpc.http2.hpack.header_field import (
    LONGEST_SHARED,
    OVERHEAD,
    Field,
    decoded_field,
    known_name,
    name_of,
    shared_field,
)
from protocols.grpc.http2.hpack.huffman import HpackError, decode
from protocols.grpc.http2.hpack.static_table import STATIC_TABLE

__all__ = ["Field", "HeaderBomb", "HeaderDecoder", "HeadersTooLarge", "HpackError", "encode_fields"]

_MOST_INTEGER: Final = (1 << 31) - 1
_MOST_CONTINUED: Final = 5
_PIECE: Final = 64
"""Bytes of a block that are looked at together: so many references follow each other at most."""
_REMEMBERED_BYTES: Final = 16_384
"""Of all remembered blocks of a decoder, with what they say; RFC's count, which is above the memory."""
_MOST_IN_STEP: Final = 4
"""So many times the limit a block may have, and is still read to its end for the table's sake: in headers
that are written out, and in the number of references."""
_SHARED_AT_FIRST: Final = 48
"""So many fields that enter a decoder's table first are looked for among those of other connections:
clients of one kind begin alike, and what comes later is mostly new in every call."""
_STATIC: Final = tuple(decoded_field(name, False, value.encode(), False) for name, value in STATIC_TABLE)
"""Number 1 is at 0."""
_STATIC_LENGTH: Final = len(_STATIC)
_NOTHING: Final[dict[bytes, tuple[Field, ...]]] = {}
"""What decoders remember who remember nothing. Never written to."""


class HeadersTooLarge(PeerWireError):
    """A header list above the limit, in bytes: its stream ends. The dynamic table stays in step.

    `size`: the bytes counted so far, which exceed the limit and may not be all.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the headers have {size} bytes or more, the limit is {limit}")
        self.size = size
        self.limit = limit


class HeaderBomb(HpackError):
    """More headers in one block than are worth reading it to its end."""


class HeaderDecoder:
    """The header blocks of one connection, in their order.

    `table_bytes`: the size of the dynamic table, and the limit of its updates. A peer of HTTP/2 starts
    from 4096 until it has read another size in our SETTINGS.
    `max_list_bytes`: the largest list of headers by section 4.1, 32 bytes of overhead for each
    included, so that it bounds their number as well.
    `remembered`: the number of blocks.
    """

    __slots__ = (
        "_early",
        "_list",
        "_most",
        "_remembered",
        "_room",
        "_seen",
        "_seen_bytes",
        "_table",
        "_used",
    )

    def __init__(
        self, *, table_bytes: int = 4096, max_list_bytes: int = 16_384, remembered: int = 32
    ) -> None:
        self._most = table_bytes
        self._room = table_bytes
        self._used = 0
        self._table: list[Field] = []  # newest last: number 62 is at -1
        self._list = max_list_bytes
        self._remembered = remembered
        self._seen = _NOTHING
        self._seen_bytes = 0
        self._early = _SHARED_AT_FIRST

    @property
    def held(self) -> int:
        """Bytes in the dynamic table as section 4.1 counts them."""
        return self._used

    def decode(self, block: bytes) -> tuple[Field, ...]:
        """The fields of a whole block: the same tuple if it was read since the table changed.

        Raises HpackError, after which the decoder is of no more use, and HeadersTooLarge, after which
        it is: the whole block was read, and nothing of it kept but what entered the table. What that
        costs is bounded by the length of the block, not by what its references amount to; a block that
        writes out several times as much as a list may have is a HeaderBomb.
        """
        return self._seen.get(block) or self._read(block)

    def _read(self, block: bytes) -> tuple[Field, ...]:
        table = self._table
        limit = self._list
        most = _MOST_IN_STEP * limit // OVERHEAD
        fields: list[Field] = []
        keep = fields.append
        at = written = 0
        end = len(block)
        changed = started = False
        while at < end:
            stop = at + _PIECE if end - at > _PIECE else end
            rest = iter(block[at:stop])
            for byte in rest:
                if byte > 189:  # an entry of the dynamic table: the number is 62 or more
                    if byte == 255:
                        break
                    try:
                        keep(table[189 - byte])
                    except IndexError:
                        raise self._no_entry(byte - 128) from None
                elif byte > 128:
                    keep(_STATIC[byte - 129])
                else:
                    break
            else:
                at = stop
                if len(fields) > most:
                    raise HeaderBomb(f"a header block of {len(fields)} headers or more")
                continue
            at = stop - length_hint(rest)
            if byte == 255:
                number, at = _integer(block, at, 127)
                try:
                    keep(table[61 - number])
                except IndexError:
                    raise self._no_entry(number) from None
                continue
            if byte > 63:
                if byte == 128:
                    raise self._no_entry(0)
                field, at = self._literal(block, at, byte - 64, 63)
                changed = True
            elif byte < 32:
                field, at = self._literal(block, at, byte & 15, 15)
            else:
                if started or fields:
                    raise HpackError("an update of the table size behind a header")
                at = self._resize(block, at, byte - 32)
                changed = True
                continue
            started = True
            written += field.size
            if written <= limit:
                keep(field)
            elif written > _MOST_IN_STEP * limit:
                raise HeaderBomb(f"a header block of {written} bytes or more, the limit is {limit}")
        if written <= limit:
            written = 0
            for field in fields:
                written += field.size
        if written > limit:
            raise HeadersTooLarge(written, limit)
        decoded = tuple(fields)
        if not changed and decoded:
            self._remember(block, decoded, end + written)
        return decoded

    def _literal(self, block: bytes, at: int, number: int, most: int) -> tuple[Field, int]:
        """A literal field, and the index of its end; `number`: of the entry that has its name, or 0.

        `most`: the largest number that fits in the prefix: 63 for a field that enters the table, which
        is done here, or 15.
        """
        if number == most:
            number, at = _integer(block, at, most)
        if number == 0:
            raw, coded, at = _string(block, at)
            name, bad = (known_name if len(raw) <= LONGEST_SHARED else name_of)(raw, coded)
        else:
            try:
                like = _STATIC[number - 1] if number <= _STATIC_LENGTH else self._table[61 - number]
            except IndexError:
                raise self._no_entry(number) from None
            name = like.name
            bad = like.bad
        raw, coded, at = _string(block, at)
        if most == 15:
            if coded:
                raw = decode(raw)
            return Field(name, bad, raw, OVERHEAD + len(name) + len(raw)), at
        if self._early and len(raw) <= LONGEST_SHARED >= len(name):
            self._early -= 1
            field = shared_field(name, bad, raw, coded)
        else:
            if coded:
                raw = decode(raw)
            field = Field(name, bad, raw, OVERHEAD + len(name) + len(raw))
        used = self._used + field.size
        if used > self._room:
            used = self._evict(used)
        if used:  # else it is larger than the table
            self._table.append(field)
        self._used = used
        self._seen = _NOTHING
        return field, at

    def _evict(self, used: int) -> int:
        """Evict the oldest until `used`, which may include a new entry, fits; returns the new `used`."""
        table = self._table
        room = self._room
        gone = 0
        for field in table:
            used -= field.size
            gone += 1
            if used <= room:
                break
        del table[:gone]
        return used if used <= room else 0

    def _resize(self, block: bytes, at: int, size: int) -> int:
        if size == 31:
            size, at = _integer(block, at, 31)
        if size > self._most:
            raise HpackError(f"a table of {size} bytes, the limit is {self._most}")
        self._room = size
        if self._used > size:
            self._used = self._evict(self._used)
        self._seen = _NOTHING
        return at

    def _remember(self, block: bytes, fields: tuple[Field, ...], size: int) -> None:
        if size > _REMEMBERED_BYTES or not self._remembered:
            return
        seen = self._seen
        self._seen_bytes += size
        if not seen or len(seen) >= self._remembered or self._seen_bytes > _REMEMBERED_BYTES:
            self._seen = seen = {}
            self._seen_bytes = size
        seen[block] = fields

    def _no_entry(self, number: int) -> HpackError:
        return HpackError(f"entry {number} of the table, which has 1 to {_STATIC_LENGTH + len(self._table)}")


def _string(block: bytes, at: int) -> tuple[bytes, bool, int]:
    """A string literal as it is there, whether it is Huffman coded, and where it ends (section 5.2)."""
    try:
        length = block[at]
    except IndexError:
        raise HpackError("a header block ends within a header") from None
    at += 1
    coded = length > 127
    if coded:
        length -= 128
    if length == 127:
        length, at = _integer(block, at, 127)
    end = at + length
    if end > len(block):
        raise HpackError(f"a string of {length} bytes, {len(block) - at} are left of its header block")
    return block[at:end], coded, end


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """A number that does not fit in its prefix, which is full; and where it ends (section 5.1)."""
    number = prefix
    for shift in range(0, 7 * _MOST_CONTINUED, 7):
        try:
            byte = block[at]
        except IndexError:
            raise HpackError("a header block ends within a number") from None
        at += 1
        number += (byte & 127) << shift
        if byte < 128:
            if number > _MOST_INTEGER:
                break
            return number, at
    raise HpackError(f"a number above {_MOST_INTEGER}, or of more than {_MOST_CONTINUED} bytes")
