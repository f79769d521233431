"""Records that cannot be decoded: logged once, counted, kept, and skipped.

A record of `messages` stays where it is: groups and readers continue after it, and retention removes
it with its neighbours. A record that would be tried again at its time (a delayed message, a half
message) is moved unchanged to the keyspace `damaged`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from brokers.embedded.storage.keys import DAMAGED
from brokers.embedded.storage.record_blocks import expand
from brokers.embedded.storage.store import Store
from popgate.errors import PeerWireError
from popgate.wire.messages.records import Record, decode_record

_log = logging.getLogger(__name__)
_MOST_PLACES = 10_000


class DamagedRecords:
    """Lives as long as the broker. Adds to the store's batch; the caller commits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moved = 0
        self._in_place: set[tuple[int, int, int]] = set()

    def __repr__(self) -> str:
        return f"<DamagedRecords moved {self._moved} in place {len(self._in_place)}>"

    def __len__(self) -> int:
        """Records that were moved, and those in `messages` that were read since the start."""
        return self._moved + len(self._in_place)

    def load(self) -> None:
        """Count the records that were moved earlier."""
        self._moved = sum(1 for _ in self._store.scan(DAMAGED, b""))

    def move(self, space: str, pairs: Iterable[tuple[bytes, bytes]], why: object) -> None:
        """Keep pairs of a keyspace in `damaged`; the caller deletes them from where they were."""
        moved = list(pairs)
        for key, value in moved:
            self._store.put(DAMAGED, space.encode() + b"/" + key, value)
        self._moved += len(moved)
        keys = " ".join(key.hex() for key, _ in moved)
        _log.error("a record of %s is damaged and was set aside: %s (key %s)", space, why, keys)

    def leave(self, topic: str, place: tuple[int, int, int], why: object) -> None:
        """Step over a record of `messages`; `place` is topic id, queue, offset."""
        if place in self._in_place or len(self._in_place) >= _MOST_PLACES:
            return
        self._in_place.add(place)
        _log.error(
            "message %d of queue %d of topic %s is damaged and is stepped over: %s",
            *(place[2], place[1], topic, why),
        )


def check_whole(record: bytes) -> None:
    """Raises PeerWireError for what is not exactly one record."""
    decoded = decode_record(record)
    if decoded.size != len(record):
        raise PeerWireError(f"a record of {decoded.size} bytes has {len(record)}")


def decode_sound(record: bytes) -> Record | None:
    """The record, or None when it is damaged."""
    try:
        return decode_record(record)
    except PeerWireError:
        return None


def decode_first(value: bytes) -> Record | None:
    """The first record of a value of `messages`, or None when it is damaged."""
    return decode_sound(expand(value))
