"""The keyspaces of the store and how their keys are packed; big-endian, so that order is meaning.

| space    | key                                        | value                                     |
| -------- | ------------------------------------------ | ----------------------------------------- |
| meta     | name                                       | as named                                  |
| topics   | topic name                                 | JSON: id, settings                        |
| groups   | group name                                 | JSON: id, settings                        |
| floors   | topic id, queue                            | first offset kept (written by retention)  |
| messages | topic id, queue, offset of the last record | a record in RocketMQ's stored layout, or  |
|          |                                            | several: see `record_blocks`              |
| index    | hour, topic id, hash, queue, offset        | nothing                                   |
|          | hour, topic id, highest, queue, offset     | a block: checksums of a batch's ids, keys |
| timers   | due ms, hash of id, sequence               | topic id, queue, then the record          |
| half     | sequence, 0 or 1                           | 0: state of the transaction; 1: the record|
| ended    | sequence                                   | how the transaction ended                 |
| checks   | due ms, sequence                           | nothing: ask about it, or forget its end  |
| inflight | group id, topic id, queue, offset          | due ms, pop ms, attempt, flags, holder …  |
| progress | group id, topic id, queue                  | frontier, latest name of a delivery       |
| sizes    | topic id, queue, offset                    | bytes from the mark before up to offset   |
| seen     | sequence; and while that is filled,        | a segment: ids sent lately, and results;  |
|          | sequence, message id, mark of the topic    | one message that is held back             |
| removed  | b"t" or b"g", id                           | nothing: a deleted topic or group whose   |
|          |                                            | data has not all been removed yet         |
| damaged  | keyspace, b"/", key                        | a record that could not be decoded        |
| lite     | lite topics and the places of groups in them: see `brokers.embedded.lite.keys`       |
| litedue  | due ms, kind, topic id, lite id, group id  | name of the lite topic, where it is needed|
| redriven | topic id, queue, offset                    | ms: when this dead letter was redriven    |
| compacted| topic id, queue, b"s"                      | how far compaction looked, and its holes  |
|          | topic id, queue, b"k", digest of the key   | offset of the newest message of this key  |
|          | topic id, queue, b"t", due ms, offset      | digest of the key; what goes at that time |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat

from popgate.wire.checksum import crc32

META = "meta"
TOPICS = "topics"
GROUPS = "groups"
FLOORS = "floors"
MESSAGES = "messages"
INDEX = "index"
TIMERS = "timers"
HALF = "half"
ENDED = "ended"
CHECKS = "checks"
INFLIGHT = "inflight"
PROGRESS = "progress"
SIZES = "sizes"
SEEN = "seen"
REMOVED = "removed"
DAMAGED = "damaged"
REDRIVEN = "redriven"
LITE = "lite"
LITE_DUE = "litedue"
COMPACTED = "compacted"

SPACES = (
    *(META, TOPICS, GROUPS, FLOORS, MESSAGES, INDEX, TIMERS, HALF, ENDED, CHECKS),
    *(INFLIGHT, PROGRESS, SIZES, SEEN, REMOVED, DAMAGED, REDRIVEN),
    *(LITE, LITE_DUE, COMPACTED),
)

HIGHEST_U64 = (1 << 64) - 1
UNREAD = HIGHEST_U64
"""In `progress` in the place of a delivery: the group has not read this queue."""
HOUR_MS = 3_600_000

message_key = struct.Struct(">IHQ").pack
"""topic id, queue, offset"""
_pack_message_key = struct.Struct(">6sQ").pack
"""the same in two parts: topic id and queue, offset"""
split_message_key = struct.Struct(">IHQ").unpack
floor_key = struct.Struct(">IH").pack
"""topic id, queue"""
index_key = struct.Struct(">IIQHQ").pack
"""hours since the epoch, topic id, hash, queue, offset"""
_CHECKSUM_AT = 11
_pack_index_key = struct.Struct(">11sI3sQ").pack
"""the same in parts: all before the checksum of the hash, that, kind and queue, offset"""
split_index_key = struct.Struct(">IIQHQ").unpack
timer_key = struct.Struct(">QQQ").pack
"""due ms, hash of the message id, sequence"""
split_timer_key = struct.Struct(">QQQ").unpack
sequence_key = struct.Struct(">Q").pack
half_key = struct.Struct(">QB").pack
"""sequence, part (HALF_STATE or HALF_RECORD)"""
check_key = struct.Struct(">QQ").pack
"""due ms, sequence"""
split_check_key = struct.Struct(">QQ").unpack
removed_key = struct.Struct(">cI").pack
"""kind (REMOVED_TOPIC or REMOVED_GROUP), id"""
split_removed_key = struct.Struct(">cI").unpack
inflight_key = struct.Struct(">IIHQ").pack
"""group id, topic id, queue, offset"""
split_inflight_key = struct.Struct(">IIHQ").unpack
progress_key = struct.Struct(">IIH").pack
"""group id, topic id, queue"""
split_progress_key = struct.Struct(">IIH").unpack
progress_value = struct.Struct(">QQ").pack
"""frontier, the latest pop ms that named a delivery"""
split_progress_value = struct.Struct(">QQ").unpack

compaction_key = struct.Struct(">IHc").pack
"""topic id, queue, kind (COMPACTION_STATE, or the digest of a key follows it)"""
compaction_state = struct.Struct(">QQQ").pack
"""the first offset not looked at, holes below it, holes whose room was not given back yet"""
split_compaction_state = struct.Struct(">QQQ").unpack
tombstone_key = struct.Struct(">IHcQQ").pack
"""topic id, queue, COMPACTION_DUE, due ms, offset"""
split_tombstone_key = struct.Struct(">IHcQQ").unpack

SENT_MARK = b"\x01"
"""Between a message id and what `sent_mark` adds to it."""
_lite_prefix = struct.Struct(">cI").pack
_id = struct.Struct(">I").pack
_pack_queue = struct.Struct(">H").pack

HALF_STATE = 0
HALF_RECORD = 1
REMOVED_TOPIC = b"t"
REMOVED_GROUP = b"g"
COMPACTION_STATE = b"s"
COMPACTION_KEY = b"k"
COMPACTION_DUE = b"t"

TOPIC_ID_BITS = 18
QUEUE_BITS = 10
OFFSET_BITS = 35
MOST_TOPIC_IDS = 1 << TOPIC_ID_BITS
MOST_QUEUES = 1 << QUEUE_BITS
ID_KIND = b"i"[0]


def sent_mark(topic_id: int) -> bytes:
    """What follows the message id in a key of `seen`: it names the topic, and marks the end of the id."""
    return SENT_MARK + b"%d" % topic_id


def lite_prefixes_of_topic(topic_id: int) -> tuple[bytes, ...]:
    """What the keys of a topic in `lite` begin with, without the places of groups."""
    return _lite_prefix(b"t", topic_id), _lite_prefix(b"l", topic_id)


def lite_prefix_of_group(group_id: int, topic_id: int | None = None) -> bytes:
    """What the keys of a group's places in `lite` begin with, in all topics or in one."""
    prefix = _lite_prefix(b"p", group_id)
    return prefix if topic_id is None else prefix + _id(topic_id)


def text_hash(kind: bytes, text: bytes) -> int:
    """A hash of a message id (kind b"i") or of a message key (kind b"k"): where to look, not a proof."""
    return crc32(text) << 8 | kind[0]


def message_keys(topic_id: int, queue_id: int, offsets: Iterable[int]) -> list[bytes]:
    """The keys in `messages` of so many offsets of one queue."""
    return list(map(_pack_message_key, repeat(floor_key(topic_id, queue_id)), offsets))


def index_keys(
    hour: int, topic_id: int, queue_id: int, kind: bytes, texts: Iterable[bytes], offsets: Iterable[int]
) -> list[bytes]:
    """The keys in `index` of so many texts of one kind, each of the message at the offset beside it."""
    # A hash (`text_hash`) is three bytes 0, the checksum, and the kind: only the checksum differs.
    front = index_key(hour, topic_id, 0, 0, 0)[:_CHECKSUM_AT]
    behind = kind + _pack_queue(queue_id)
    return list(map(_pack_index_key, repeat(front), map(crc32, texts), repeat(behind), offsets))


def commit_offset(topic_id: int, queue_id: int, offset: int) -> int:
    """The physical offset that clients see: it names topic, queue and the low bits of the offset.

    It replaces an index from physical offsets to messages; `split_commit_offset` undoes it.
    """
    return (topic_id << QUEUE_BITS | queue_id) << OFFSET_BITS | (offset & ((1 << OFFSET_BITS) - 1))


def commit_offsets(topic_id: int, queue_id: int, first: int, count: int) -> Sequence[int]:
    """The same of so many offsets, one behind the other."""
    begin = commit_offset(topic_id, queue_id, first)
    if begin >> OFFSET_BITS == (begin + count) >> OFFSET_BITS:
        return range(begin, begin + count)
    return [commit_offset(topic_id, queue_id, offset) for offset in range(first, first + count)]


def split_commit_offset(value: int) -> tuple[int, int, int]:
    """(topic id, queue, low bits of the offset); the queue's bounds decide the high bits."""
    low = value & ((1 << OFFSET_BITS) - 1)
    rest = value >> OFFSET_BITS
    return rest >> QUEUE_BITS, rest & (MOST_QUEUES - 1), low
