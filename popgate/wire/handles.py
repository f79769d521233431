"""What brokers tell about popped messages, and how several of them are acknowledged at once.

The answer to a pop has the check points in its ext fields, apart from the messages: where each queue's
batch starts, which offsets it has, how often ordered messages came. Out of both a handle is made, the
text by which a delivery is acknowledged. Source: protocol facts 4.1 and 4.4.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from popgate.errors import LocalWireError, PeerWireError, shown
from popgate.wire.properties import POP_CK, find_property
from popgate.wire.records import Record

OF_TOPIC, OF_RETRY_V1, OF_RETRY_V2 = range(3)
"""Kinds of topics: the topic itself, the group's pop retry topic by its older and by its newer name."""
MOST_BITS: Final = 1 << 16
"""How far the offsets of one batch acknowledgement may be apart."""
_RETRY = "%RETRY%"
_LONGEST_INFO = 1 << 18
_LARGEST = (1 << 63) - 1
_POP_CK = POP_CK.encode()

QueueKey = tuple[int, int]
"""A kind of topic and a queue id."""


def topic_kind(topic: str) -> int:
    if not topic.startswith(_RETRY):
        return OF_TOPIC
    return OF_RETRY_V2 if "+" in topic else OF_RETRY_V1


@dataclass(slots=True, frozen=True)
class PopInfo:
    """The ext fields of the answer to a pop. `pop_ms` is the broker's wall time, `invisible_ms` a duration.

    `rest` is how many messages the broker still has. `starts` is empty for brokers that are too old to
    tell. `counts` are deliveries so far of ordered messages, by queue and offset; of a whole queue with
    the offset -1.
    """

    pop_ms: int
    invisible_ms: int
    revive_queue: int
    rest: int = 0
    starts: Mapping[QueueKey, int] = field(default_factory=dict)
    offsets: Mapping[QueueKey, Sequence[int]] = field(default_factory=dict)
    counts: Mapping[tuple[int, int, int], int] = field(default_factory=dict)

    @classmethod
    def decode(cls, fields: Mapping[str, str]) -> PopInfo:
        """Raises PeerWireError for fields that are missing or have another form."""
        return cls(
            _field(fields, "popTime"),
            _field(fields, "invisibleTime"),
            _field(fields, "reviveQid"),
            _field(fields, "restNum", "0"),
            {
                (kind, _number(queue)): _number(start)
                for kind, queue, start in _records(fields, "startOffsetInfo")
            },
            {
                (kind, _number(queue)): tuple(map(_number, offsets.split(",")))
                for kind, queue, offsets in _records(fields, "msgOffsetInfo")
            },
            dict(_count(kind, queue, count) for kind, queue, count in _records(fields, "orderCountInfo")),
        )

    def encode(self) -> dict[str, str]:
        """The ext fields."""
        told = {
            "popTime": str(self.pop_ms),
            "invisibleTime": str(self.invisible_ms),
            "reviveQid": str(self.revive_queue),
            "restNum": str(self.rest),
            "startOffsetInfo": ";".join(f"{kind} {queue} {at}" for (kind, queue), at in self.starts.items()),
            "msgOffsetInfo": ";".join(
                f"{kind} {queue} {','.join(map(str, offsets))}"
                for (kind, queue), offsets in self.offsets.items()
            ),
        }
        if self.counts:
            told["orderCountInfo"] = ";".join(
                f"{kind} {queue} {count}" if offset < 0 else f"{kind} qo{queue}%{offset} {count}"
                for (kind, queue, offset), count in self.counts.items()
            )
        return told

    def handle(
        self, broker: str, kind: int, queue_id: int, offset: int, start: int, commit_offset: int
    ) -> str:
        """The handle in nine fields."""
        return (
            f"{start} {self.pop_ms} {self.invisible_ms} {self.revive_queue} {kind} {broker} {queue_id} "
            f"{offset} {commit_offset}"
        )

    def handles(self, broker: str, records: Sequence[Record]) -> list[str]:
        """The handle of each message, in nine fields: out of its own property, or made of this.

        What comes from a retry topic has the property, and is of the topic itself by its name.
        """
        handles = []
        seen: dict[QueueKey, int] = {}
        firsts: dict[QueueKey, int] = {}
        for record in records:
            told = find_property(record.properties, _POP_CK)
            if told:
                handles.append(_whole(told, record.commit_offset))
                continue
            key = topic_kind(record.topic), record.queue_id
            place = seen[key] = seen.get(key, -1) + 1
            first = firsts.setdefault(key, record.offset)
            offsets = self.offsets.get(key, ())
            offset = offsets[place] if place < len(offsets) else record.offset
            start = self.starts.get(key, first)
            handles.append(self.handle(broker, *key, offset, start, record.commit_offset))
        return handles

    def count(self, kind: int, queue_id: int, offset: int) -> int:
        """How often an ordered message was delivered before, 0 when that is not told."""
        found = self.counts.get((kind, queue_id, offset))
        return self.counts.get((kind, queue_id, -1), 0) if found is None else found


def encode_bits(offsets: Iterable[int], start: int) -> str:
    """Offsets from `start` on, as the bits of a batch acknowledgement: Base64 of Java's BitSet.

    Raises LocalWireError for an offset before `start` or too far behind it.
    """
    bits = 0
    for offset in offsets:
        if not 0 <= offset - start < MOST_BITS:
            raise LocalWireError(f"offset {offset} is not within {MOST_BITS} behind {start}")
        bits |= 1 << (offset - start)
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str, start: int) -> list[int]:
    """The offsets that are told so, in their order. Raises PeerWireError."""
    if len(text) > MOST_BITS // 6 + 4:
        raise PeerWireError(f"the bits of a batch acknowledgement have {len(text)} characters")
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PeerWireError(f"the bits of a batch acknowledgement are no Base64: {error}") from error
    bits = f"{int.from_bytes(data, 'little'):b}"[::-1]
    return [start + place for place, bit in enumerate(bits) if bit == "1"]


def _whole(told: bytes, commit_offset: int) -> str:
    """A handle of the broker with its ninth field."""
    handle = told.decode("utf-8", "replace")
    return f"{handle} {commit_offset}" if handle.count(" ") == 7 else handle


def _field(fields: Mapping[str, str], name: str, default: str = "") -> int:
    return _number(fields.get(name, default))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _LARGEST):
        raise PeerWireError(f"the answer to a pop has {shown(text)} where a number belongs")
    return int(text)


def _records(fields: Mapping[str, str], name: str) -> list[tuple[int, str, str]]:
    """The records of a field: kind of topic, queue, and what is told of it. A queue is told of once."""
    text = fields.get(name, "")
    if len(text) > _LONGEST_INFO:
        raise PeerWireError(f"{name} of the answer to a pop has {len(text)} characters")
    found: dict[tuple[int, str], str] = {}
    for record in filter(None, text.split(";")):
        pieces = record.split(" ")
        if len(pieces) != 3 or pieces[0] not in ("0", "1", "2") or (int(pieces[0]), pieces[1]) in found:
            raise PeerWireError(f"{name} of the answer to a pop has the record {shown(record)}")
        found[int(pieces[0]), pieces[1]] = pieces[2]
    return [(kind, queue, told) for (kind, queue), told in found.items()]


def _count(kind: int, queue: str, count: str) -> tuple[tuple[int, int, int], int]:
    if queue.startswith("qo"):
        number, _, offset = queue[2:].partition("%")
        return (kind, _number(number), _number(offset)), _number(count)
    return (kind, _number(queue), -1), _number(count)
