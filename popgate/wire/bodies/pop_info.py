"""The header fields of a pop response, and the bit sets of batched acknowledgements.

A pop response has the parts of the receipts in three header fields, whose records are joined with
";" and have one space between their fields. Sources: protocol facts 4.1 and 4.4.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from popgate.errors import LocalWireError, PeerWireError, shown

_MOST_RECORDS = 4_096
"""Of one header field; a pop answers with 32 messages at most."""
_WIDEST = 65_536
"""Offsets that one bit set may span: a bit per offset is sent."""
_MOST_BITS = 8_192
"""Of one bit set: a batch acknowledges no more messages (`protocols.remoting.consume.pop`)."""

Place = tuple[int, int]
"""(topic type, queue id): the topic types are those of `popgate.ids.receipt`."""


@dataclass(slots=True)
class PopInfo:
    """The header of a pop answer; times are of the broker's wall clock.

    `starts`: the first offset of the check point of each place. `offsets`: those of the messages, in
    their order. `counts`: how often the first message of a place was consumed before (ordered pops),
    `counts_at` the same of single offsets.
    """

    pop_ms: int
    invisible_ms: int
    revive_queue: int
    rest: int
    starts: Mapping[Place, int] = field(default_factory=dict)
    offsets: Mapping[Place, Sequence[int]] = field(default_factory=dict)
    counts: Mapping[Place, int] = field(default_factory=dict)
    counts_at: Mapping[tuple[int, int, int], int] = field(default_factory=dict)

    def consumed(self, topic_type: int, queue_id: int, offset: int) -> int:
        """How often an ordered group got this message before."""
        count = self.counts_at.get((topic_type, queue_id, offset))
        return self.counts.get((topic_type, queue_id), 0) if count is None else count


def parse_pop_info(fields: Mapping[str, str]) -> PopInfo:
    """Parse the extension fields of a pop response. Raises PeerWireError for invalid ones."""
    info = PopInfo(
        _number(fields.get("popTime", "0")),
        _number(fields.get("invisibleTime", "0")),
        _number(fields.get("reviveQid", "0")),
        _number(fields.get("restNum", "0")),
    )
    starts = fields.get("startOffsetInfo")
    if starts:
        info.starts = {place: _number(text) for place, text in _records(starts)}
    offsets = fields.get("msgOffsetInfo")
    if offsets:
        info.offsets = {
            place: [_number(offset) for offset in text.split(",", _MOST_RECORDS)]
            for place, text in _records(offsets)
        }
    counts = fields.get("orderCountInfo")
    if counts:
        info.counts, info.counts_at = _counts(counts)
    return info


def encode_pop_info(info: PopInfo) -> dict[str, str]:
    """The extension fields of a pop answer."""
    fields = {
        "popTime": str(info.pop_ms),
        "invisibleTime": str(info.invisible_ms),
        "reviveQid": str(info.revive_queue),
        "restNum": str(info.rest),
        "startOffsetInfo": ";".join(f"{kind} {queue} {at}" for (kind, queue), at in info.starts.items()),
        "msgOffsetInfo": ";".join(
            f"{kind} {queue} {','.join(map(str, offsets))}" for (kind, queue), offsets in info.offsets.items()
        ),
    }
    counts = [f"{kind} {queue} {count}" for (kind, queue), count in info.counts.items()]
    counts += [f"{kind} qo{queue}%{at} {count}" for (kind, queue, at), count in info.counts_at.items()]
    if counts:
        fields["orderCountInfo"] = ";".join(counts)
    return fields


def encode_bits(offsets: Iterable[int], start: int) -> str:
    """The bit set of offsets from `start` on: Java's `BitSet` in little-endian bytes, in Base64.

    Raises LocalWireError for offsets that are not within reach of `start`.
    """
    bits = 0
    for offset in offsets:
        if not 0 <= offset - start < _WIDEST:
            raise LocalWireError(f"offset {offset} is out of reach of {start}")
        bits |= 1 << (offset - start)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str, start: int) -> list[int]:
    """The offsets of a bit set. Raises PeerWireError for an invalid one."""
    try:
        packed = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise PeerWireError(f"a bit set is no Base64: {shown(text)}") from error
    if len(packed) > _WIDEST // 8:
        raise PeerWireError(f"a bit set has {len(packed)} bytes, {_WIDEST // 8} are read")
    count = int.from_bytes(packed, "little").bit_count()
    if count > _MOST_BITS:
        raise PeerWireError(f"a bit set has {count} bits, {_MOST_BITS} are read")
    # Byte by byte: each step on the whole number would take time for all of its bits.
    return [
        start + 8 * at + bit for at, byte in enumerate(packed) if byte for bit in range(8) if byte >> bit & 1
    ]


def _counts(text: str) -> tuple[dict[Place, int], dict[tuple[int, int, int], int]]:
    counts: dict[Place, int] = {}
    counts_at: dict[tuple[int, int, int], int] = {}
    for kind, where, value in _split(text):
        if where.startswith("qo"):
            queue_id, percent, offset = where[2:].partition("%")
            if not percent:
                raise PeerWireError(f"a pop answer counts for {shown(where)}")
            counts_at[_number(kind), _number(queue_id), _number(offset)] = _number(value)
        else:
            counts[_number(kind), _number(where)] = _number(value)
    return counts, counts_at


def _records(text: str) -> list[tuple[Place, str]]:
    return [(_place(kind, queue_id), value) for kind, queue_id, value in _split(text)]


@lru_cache(maxsize=1024)
def _place(kind: str, queue_id: str) -> Place:
    """Cached: there are few values, and every response repeats some of them."""
    return _number(kind), _number(queue_id)


def _split(text: str) -> list[list[str]]:
    records = [record.split(" ") for record in text.split(";", _MOST_RECORDS) if record]
    for parts in records:
        if len(parts) != 3:
            raise PeerWireError(f"a pop answer has the record {shown(' '.join(parts))}")
    return records


def _number(text: str) -> int:
    if len(text) <= 20 and text.isascii() and (text.isdigit() or (text[:1] == "-" and text[1:].isdigit())):
        return int(text)
    raise PeerWireError(f"a pop answer has {shown(text)} for a number")
