"""How lite topics stand in the store; big-endian, so that order is meaning.

A message of a lite topic is an ordinary record in a queue of its topic, so that retention, look-ups
and dead letters know nothing of lite topics. What is added is an index in front of it.

| key in `lite`                             | value                                              |
| ----------------------------------------- | -------------------------------------------------- |
| b"t", topic id                            | how many lite topics, the next lite id, expiration |
| b"t", topic id, name                      | lite id, first and next offset, last message, due  |
| b"l", topic id, lite id, offset           | queue, offset: where the message is                |
| b"p", group id, topic id, lite id         | a group's place: see `encode_place`                |

Lite ids of a topic are never given twice. Whatever must happen at a time has one key in `litedue`,
and its owner knows which: of a lite topic the next look whether it is idle, of a group's place the
next end of an invisible time. So nothing is scanned at the start, and nothing idle is in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from brokers.embedded.groups.entries import Entry

TOPIC_DUE = 0
PLACE_DUE = 1

_TOPIC_HEAD = struct.Struct(">cI")
_HEADER = struct.Struct(">QQq")
_TOPIC = struct.Struct(">QQQQQ")
_LOG_KEY = struct.Struct(">cIQQ")
_SPOT = struct.Struct(">HQ")
_PLACE_KEY = struct.Struct(">cIIQ")
_DUE_KEY = struct.Struct(">QBIQI")
_PLACE = struct.Struct(">QQQBBBB")
"""frontier, latest name, due ms; lengths of name, attempt id and holder, and a version"""
_ENTRY = struct.Struct(">QQQIB")
"""offset, due ms, pop ms, attempt, held and above that bit renewals (0 unless held)"""
_VERSION = 1
_BEYOND = b"\xff" * 24

pack_header = _HEADER.pack
"""number of lite topics, next lite id, expiration in ms that all of them are due by (-1: none)"""
unpack_header = _HEADER.unpack
pack_topic = _TOPIC.pack
"""lite id, first offset kept, next offset, ms of the last message, due ms (0: none)"""
unpack_topic = _TOPIC.unpack
pack_spot = _SPOT.pack
"""queue, offset"""
unpack_spot = _SPOT.unpack
due_key = _DUE_KEY.pack
"""due ms, kind (TOPIC_DUE or PLACE_DUE), topic id, lite id, group id (0 of a TOPIC_DUE)"""
split_due_key = _DUE_KEY.unpack


def topic_key(topic_id: int, name: bytes = b"") -> bytes:
    """Of a lite topic; without a name, of the header of its topic."""
    return _TOPIC_HEAD.pack(b"t", topic_id) + name


def name_in(key: bytes) -> str:
    """The name in the key of a lite topic; empty of a header."""
    return key[_TOPIC_HEAD.size :].decode()


def log_key(topic_id: int, lite_id: int, offset: int) -> bytes:
    return _LOG_KEY.pack(b"l", topic_id, lite_id, offset)


def place_key(group_id: int, topic_id: int, lite_id: int) -> bytes:
    return _PLACE_KEY.pack(b"p", group_id, topic_id, lite_id)


PLACES = b"p"
PLACE_PREFIX = 9
"""Bytes in front of the lite id in the key of a place: it is of one group and topic."""


def pair_in(prefix: bytes) -> tuple[int, int]:
    """The group id and the topic id at the front of the key of a place."""
    return int.from_bytes(prefix[1:5], "big"), int.from_bytes(prefix[5:PLACE_PREFIX], "big")


def lite_id_in(key: bytes) -> int:
    """The lite id in the key of a group's place."""
    return int.from_bytes(key[-8:], "big")


def encode_place(
    name: str,
    frontier: int,
    last_pop_ms: int,
    due_ms: int,
    attempt_id: str,
    holder: str,
    entries: Mapping[int, Entry],
) -> bytes:
    """A group's place in a lite topic: all below `frontier` without an entry are finished.

    Only the newest receive can hold something, so one attempt id and one holder are enough.
    """
    texts = [name.encode(), attempt_id.encode(), holder.encode()]
    head = _PLACE.pack(frontier, last_pop_ms, due_ms, *map(len, texts), _VERSION)
    packed = [
        _ENTRY.pack(
            offset,
            entry.due_ms,
            entry.pop_ms,
            entry.attempt,
            # Older programs take any number for held.
            entry.renewals << 1 | 1 if entry.held else 0,
        )
        for offset, entry in entries.items()
    ]
    return b"".join([head, *texts, *packed])


def decode_place(value: bytes) -> tuple[str, int, int, int, str, str, dict[int, Entry]]:
    """What `encode_place` was given. Raises ValueError, struct.error for what is none."""
    frontier, last_pop_ms, due_ms, *lengths, version = _PLACE.unpack_from(value)
    if version != _VERSION:
        raise ValueError(f"version {version} of a place is not known")
    texts, at = [], _PLACE.size
    for length in lengths:
        texts.append(value[at : at + length].decode())
        at += length
    entries = {
        offset: Entry(due, pop_ms, attempt, bool(flags), texts[1], texts[2], renewals=flags >> 1)
        for offset, due, pop_ms, attempt, flags in _ENTRY.iter_unpack(value[at:])
    }
    return texts[0], frontier, last_pop_ms, due_ms, texts[1], texts[2], entries


def beyond(prefix: bytes) -> bytes:
    """Higher than every key that begins with this."""
    return prefix + _BEYOND
