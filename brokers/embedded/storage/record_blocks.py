"""Records of messages that were stored together: one value in the store for several of them.

An entry of its own for each record costs RocksDB more than a small record itself: in its log, in its tables
in memory, and whenever tables are written and merged. A value of `messages` is one record, or those of a
batch one behind the other, as RocketMQ sends them to a client that pulls. Its key is that of the last one:
the first entry from the key of a record on has it, and what is removed below an offset takes a block with
it when all its records go.

Records of a batch are much alike. They are compressed before RocksDB writes them to its log, which costs less
than the checksum that it makes there of every byte. An LZ4 block has no checksum of its own and needs none:
RocksDB has one for each record of its log and each block of its tables, and looks at it whenever it reads
them, also where a log is repaired; a backup has one for each of its files.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import Final

from lz4.block import LZ4BlockError, compress, decompress

from popgate.wire.messages.record_parts import RecordParts
from popgate.wire.messages.records import SMALLEST_RECORD

MOST_BYTES: Final = 32 * 1024
"""Of a value, unless one record alone is larger: who needs one of its records reads it whole."""
MOST_RECORDS: Final = MOST_BYTES // SMALLEST_RECORD
_COMPRESSED: Final = b"\xff\xff\xff\xff"
"""What a compressed value begins with, then the offset of its first record, its size, and the LZ4 block.

No record is so long.
"""
_GAIN: Final = 7 / 8
"""A compressed value is at most so large beside one that is not, or it is stored as it is."""
_PACKED_AT: Final = 12
_HEAD_BYTES: Final = 16
_SMALLEST_BLOCK: Final = 2 * SMALLEST_RECORD
_unpack_size: Final = Struct(">I").unpack_from
_unpack_head: Final = Struct(">I16xQ").unpack_from
"""Size and offset of the first record."""


class RecordBlock:
    """Several records, of which that at `first` is the first and that at `last` the last one."""

    __slots__ = ("_starts", "first", "last", "value")

    def __init__(self, value: bytes, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.value = value
        self._starts = _starts_in(value, last - first + 1)

    def __repr__(self) -> str:
        return f"<RecordBlock {self.first} to {self.last}, {len(self.value)} bytes>"

    def record(self, offset: int) -> bytes:
        """The record at an offset from `first` to `last`. Behind damage it is one that cannot be decoded."""
        at = offset - self.first
        return self.value[self._starts[at] : self._starts[at + 1]]

    def rest(self, offset: int) -> bytes:
        """Those from an offset on, one behind the other."""
        return self.value[self._starts[max(offset - self.first, 0)] :]

    def records(self, begin: int, end: int) -> list[bytes]:
        """Those with begin <= offset < end."""
        value = self.value
        starts = self._starts[max(begin - self.first, 0) : end - self.first + 1]
        return [value[start:stop] for start, stop in pairwise(starts)]


def join_records(records: RecordParts, first: int) -> tuple[list[int], list[bytes]]:
    """Records, the first of them at offset `first`, as values; and the offset of the last one in each."""
    count = len(records)
    offsets: list[int] = []
    values: list[bytes] = []
    begin = size = 0
    for at, record_size in enumerate(records.sizes):
        if size + record_size > MOST_BYTES and size:
            offsets.append(first + at - 1)
            values.append(_value(records.joined(begin, at), first + begin, at - begin))
            begin, size = at, 0
        size += record_size
    offsets.append(first + count - 1)
    values.append(_value(records.joined(begin, count), first + begin, count - begin))
    return offsets, values


def expand(value: bytes) -> bytes:
    """The records of a value, one behind the other; nothing, where it cannot be decompressed."""
    if not value.startswith(_COMPRESSED):
        return value
    if int.from_bytes(value[_PACKED_AT:_HEAD_BYTES], "little") > MOST_BYTES:
        return b""
    try:
        data: bytes = decompress(memoryview(value)[_PACKED_AT:])
    except (LZ4BlockError, ValueError):
        return b""
    return data


def block_of(value: bytes, last: int) -> RecordBlock | None:
    """The block whose last record is at offset `last`; None when the value is one record."""
    if value.startswith(_COMPRESSED):
        first = int.from_bytes(value[len(_COMPRESSED) : _PACKED_AT], "big")
    elif len(value) < _SMALLEST_BLOCK:
        return None
    else:
        size, first = _unpack_head(value)
        if size < SMALLEST_RECORD or size >= len(value):
            return None
    # What says nothing that can be is one damaged record.
    return RecordBlock(expand(value), first, last) if last - MOST_RECORDS < first < last else None


def _value(data: bytes, first: int, count: int) -> bytes:
    """Of so many records. One alone stays as it is: it is read often by itself, and may be large."""
    if count == 1:
        return data
    packed: bytes = compress(data)
    size = _PACKED_AT + len(packed)
    return b"%b%b%b" % (_COMPRESSED, first.to_bytes(8, "big"), packed) if size < len(data) * _GAIN else data


def _starts_in(value: bytes, count: int) -> list[int]:
    """Where each of so many records begins, and the end. Damage is one with all that follows."""
    end = len(value)
    starts = [0]
    at = 0
    for _ in range(1, count):
        size: int = _unpack_size(value, at)[0] if at + SMALLEST_RECORD <= end else 0
        at = at + size if SMALLEST_RECORD <= size <= end - at else end
        starts.append(at)
    starts.append(end)
    return starts
