"""Encodes the records of messages that are stored together: as parts, of which several are joined at once."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Final

from popgate.errors import LocalWireError
from popgate.wire.checksum import crc32
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import (
    HEAD_SIZE,
    LENGTHS,
    LONGEST_V1_TOPIC,
    MAGIC_V1,
    MOST_LENGTHS,
    NO_HOSTS_V6,
    encode_record,
)

_pack_middle: Final = Struct(">iq8sq8siq").pack
_pack_front: Final = Struct(">IIIiiqq48sI").pack
"""A head without IPv6 hosts, in two parts: what stands between the commit offset and the length of the body,
and all with that in it."""


class RecordParts:
    """Records that lie one behind the other, each of four parts: several are joined in one step."""

    __slots__ = ("_parts", "sizes")

    def __init__(self, parts: list[bytes], sizes: list[int]) -> None:
        self._parts = parts
        self.sizes = sizes
        """In bytes, of each record."""

    def __len__(self) -> int:
        return len(self.sizes)

    def joined(self, begin: int, end: int) -> bytes:
        """The records from `begin` up to `end`, both places in it."""
        return b"".join(self._parts[4 * begin : 4 * end])

    def each(self) -> list[bytes]:
        """The records, one by one."""
        return [self.joined(at, at + 1) for at in range(len(self.sizes))]


def encode_records(
    topic: bytes,
    queue_id: int,
    first: int,
    commit_offsets: Sequence[int],
    bodies: Sequence[bytes],
    blocks: Sequence[bytes],
    flags: Sequence[int],
    origins: Sequence[tuple[int, str]],
    sys_flag: int,
    now_ms: int,
    store_ms: int,
    store_host: bytes,
) -> RecordParts:
    """Encode messages that come for the first time, one behind the other in a queue, each as `encode_record`.

    `first`: the offset of the first of them; each sequence has one entry for each. `blocks` are properties,
    `origins` when and where ("ip:port") they were born: 0 means at `now_ms`. Raises LocalWireError.
    """
    count = len(commit_offsets)
    if not count == len(bodies) == len(blocks) == len(flags) == len(origins):
        raise ValueError("what is said of messages is of different lengths")
    parts: list[bytes] = []
    sizes: list[int] = []
    add, add_size = parts.append, sizes.append
    # What `encode_record` makes of nearly every message. What is the same for all is made once, and what is
    # mostly the same as for the message before, again when it differs: when and where it was born, and the
    # topic with the length of the properties behind it.
    plain = len(topic) <= LONGEST_V1_TOPIC and len(store_host) == 8
    told_topic = len(topic).to_bytes(2, "big")[1:] + topic
    around = HEAD_SIZE + len(told_topic) + 2
    bits = sys_flag & NO_HOSTS_V6
    last_ms = -1
    last_host: str | None = None
    born_host = middle = behind = b""
    length_behind = -1
    offset = first
    try:
        # Their lengths were compared: compiled, only this loop makes no tuple for each.
        for commit_offset, body, properties, flag, origin in zip(  # noqa: B905
            commit_offsets, bodies, blocks, flags, origins
        ):
            born_ms, host = origin
            size, length = len(body), len(properties)
            if born_ms != last_ms or host != last_host:
                if host != last_host:
                    born_host = pack_host(host)
                last_ms, last_host = born_ms, host
                middle = b""
                if len(born_host) == 8:
                    middle = _pack_middle(bits, born_ms or now_ms, born_host, store_ms, store_host, 0, 0)
            if length != length_behind:
                length_behind = length
                behind = told_topic + LENGTHS[length] if length < MOST_LENGTHS else b""
            if plain and middle and behind:
                record_size = around + size + length
                front = _pack_front(
                    record_size,
                    MAGIC_V1,
                    crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    offset,
                    commit_offset,
                    middle,
                    size,
                )
                add(front)
                add(body)
                add(behind)
                add(properties)
                add_size(record_size)
            else:
                record = encode_record(
                    topic,
                    queue_id,
                    offset,
                    commit_offset,
                    body,
                    properties,
                    sys_flag,
                    flag,
                    born_ms or now_ms,
                    born_host,
                    store_ms,
                    store_host,
                )
                add(record)
                add(b"")
                add(b"")
                add(b"")
                add_size(len(record))
            offset += 1
    except error as why:
        raise LocalWireError(f"a number does not fit into a record: {why}") from why
    return RecordParts(parts, sizes)
