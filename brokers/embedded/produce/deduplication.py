"""Recognises repeated sends: a client that lost the response sends the same message id again.

Recent sends are remembered, and a repeated one gets the first result; the message is stored once. The
ids of some hundred sends form a *segment*: one value in the keyspace `seen`, written with a later
batch. At start the ids of the segment that is still being filled are read from the
ends of the queues; ids of messages that are held back are in `seen` one by one until
then. So no write is added per message that goes to its queue, and a start reads a bounded number
of records.

Memory has a hash per id, which leads to the segment, and the segment has the id itself as the proof.
The hashes are Python's own, with a new key in every process: nobody can construct two that are
equal. They are kept in two generations, of which the older one is dropped as a whole when the younger
one is as old as the window, or has half of `dedup_max_ids`. So an id is known for the window and
an eighth of it at most; when more is sent than that, the last half of `dedup_max_ids` at least:
`known_ms` is the time that this covers, and the log has one line when it becomes shorter than the window.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from functools import partial
from itertools import islice

from brokers.embedded.catalog.catalog import Catalog, QueueState
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.produce.dedup_segments import (
    Segment,
    decode_held,
    decode_segment,
    encode_held,
    encode_segment,
    handle_of,
    keys_of,
    place_of,
    result_of,
)
from brokers.embedded.runtime.counters import Counters
from brokers.embedded.runtime.steady_clock import MonotonicWallClock
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import decode_sound
from brokers.embedded.storage.keys import (
    HIGHEST_U64,
    MESSAGES,
    SEEN,
    message_key,
    sequence_key,
    split_message_key,
)
from brokers.embedded.storage.store import Store
from popgate.clock import Clock
from popgate.model import Sent
from popgate.wire.messages.properties import UNIQ_KEY, find_property

_log = logging.getLogger(__name__)
_UNIQ_KEY = UNIQ_KEY.encode()
HASH_MASK = (1 << 60) - 1
"""Hashes of 60 bits are small integers to Python."""
FULL = 512
"""So many ids fill a segment; those that were sent together stay together."""
_MOST_OTHERS = 1024
"""A segment is closed after so many messages, from wherever they came: a start reads no more back."""
_SLICES = 8
"""A segment spans at most this part of the window."""
_DECODED = 4
"""Segments kept decoded, for a client that sends much again."""
_BYTES_PER_ID = 80
"""Memory for a known id: an integer, and its entry in a dictionary that is half full."""
_MOST_READ = 16_384
"""Messages that a start reads at most, whatever the clock did; many times what is in no segment."""


class Deduplication:
    """What was sent within the window. Adds to the store's batch; the caller commits.

    A key is a message id followed by the topic's `mark`.
    """

    def __init__(
        self,
        store: Store,
        log: MessageLog,
        catalogue: Catalog,
        clock: Clock,
        settings: EmbeddedSettings,
        tallies: Counters,
        steady: MonotonicWallClock,
    ) -> None:
        self.on = settings.dedup_window_ms > 0
        self._tallies = tallies
        self._steady = steady
        self._store = store
        self._log = log
        self._catalogue = catalogue
        self._clock = clock
        self._settings = settings
        self._window_ms = settings.dedup_window_ms
        self._most = max(settings.dedup_max_ids // 2, 1)
        self._is_short = False
        """Whether the log was told that the window is shorter than configured."""
        self.young: dict[int, int] = {}
        """Hash of the key to the number of its segment; and the generation before."""
        self.old: dict[int, int] = {}
        self.places: dict[bytes, int] = {}
        """By key, the place of each send of the segment that is being filled, which has this number."""
        self.number = 1
        self._handles: dict[bytes, bytes] = {}
        """The handles of those that have one; also in the store, each of its own."""
        self.sent_ms = 0
        """When the last send was, by the wall clock."""
        self._ahead_ms = 0
        """By how much a time that does not jump is ahead of that, as of the last segment: the window
        goes by that time.
        """
        self.since_ms = 0
        """Every send before this wall time, which is the one in records, is in a closed segment."""
        self.due_ms = HIGHEST_U64
        """A send at this time, or one before `since_ms`, belongs to the next segment."""
        self._forget_all()

    def __repr__(self) -> str:
        return f"<Deduplication knows {len(self)}, segment {self.number}>"

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    @property
    def known_ms(self) -> int:
        """How far back all sends are known, in ms: the window, or less while more was sent than is kept."""
        since_ms = self._known_since_ms
        if since_ms is None:
            return self._window_ms
        return min(max(self._steady.now_ms() - since_ms, 0), self._window_ms)

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load from the store, replacing the contents of memory. Requires the loaded catalogue."""
        self._forget_all()
        if not self.on:
            if self._store.first(SEEN, b"") is not None:
                self._store.delete_range(SEEN, b"", sequence_key(HIGHEST_U64))
            return
        now_ms = self.sent_ms = self._clock.now_ms()
        steady_ms = self._steady.now_ms()
        self._ahead_ms = steady_ms - now_ms
        since_ms = self._load_segments(steady_ms)
        if since_ms is None:  # a new store, or of a time without: what it has was sent before
            self.close(now_ms)
            return
        self.since_ms, self.due_ms = since_ms, since_ms + self._window_ms // _SLICES
        oldest_ms = max(since_ms, now_ms - self._window_ms)
        left = _MOST_READ
        for topic in self._catalogue.topics():
            for queue in topic.queues:
                if queue.last_store_ms >= oldest_ms:
                    left -= self._recall_end(queue, oldest_ms, left)
        if self.places:
            self.close(now_ms)

    def keep_up(self, now_ms: int) -> None:
        """Close the segment when enough was stored: asked in every turn that stores messages.

        In a send `now_ms` is the time of the send: a later one would say that it is in the segment.
        """
        if self._log.appended - self._mark >= _MOST_OTHERS and self.on:
            self.close(now_ms)

    # -- asked by sends -------------------------------------------------------------------------
    #
    # A send does itself what is done for every message: it looks whether the hash of a key is in `young`
    # or `old`, before it asks `find`; and enters what it stored in `young` and `places`. It closes the
    # segment when its time is not within [`since_ms`, `due_ms`), before anything is asked: the clock may
    # go back, and what is closed, is closed before the time of this send. And it closes the segment when
    # that is `FULL`.

    def find(self, key: bytes) -> Sent | None:
        """The result of an earlier send; None when this is the first. May not be committed yet."""
        known = self._find(key)
        if known is not None:
            self._tallies.repeated += 1
        return known

    def add_held(self, key: bytes, sent: Sent) -> None:
        """Remember a message that is held back: nothing else would lead to it at a start."""
        place, handle = place_of(sent.queue_id, 0), handle_of(sent)
        self._store.put(SEEN, sequence_key(self.number) + key, encode_held(place, handle))
        self.places[key], self._handles[key] = place, handle
        self.young[hash(key) & HASH_MASK] = self.number

    def close(self, now_ms: int) -> None:
        """Write the segment that was being filled, and begin the next one; `now_ms` is wall time."""
        number = self.number
        filled = Segment(self.sent_ms + self._ahead_ms, now_ms, self.places, self._handles)
        if self._handles:
            self._store.delete_range(SEEN, sequence_key(number) + b"\0", sequence_key(number + 1))
        self.number += 1
        self.places, self._handles = {}, {}
        self._store.put(SEEN, sequence_key(number), encode_segment(filled))
        self._written[number] = filled
        self._store.after_commit(partial(self._is_written, number))
        self.since_ms, self.due_ms = now_ms, now_ms + self._window_ms // _SLICES
        self._mark = self._log.appended
        steady_ms = self._steady.now_ms()
        self._ahead_ms = steady_ms - now_ms
        if len(self.young) >= self._most or abs(steady_ms - self._began_ms) >= self._window_ms:
            self._drop_old(steady_ms)

    # -- inside -------------------------------------------------------------------------------

    def _forget_all(self) -> None:
        self.young, self.old = {}, {}
        self._first_of_young = self._first_of_old = self.number = 1
        self._began_ms = 0
        self._known_since_ms: int | None = None
        """Sends before this steady time may have been forgotten; None: none were, within the window."""
        self.places, self._handles = {}, {}
        self._written: dict[int, Segment] = {}
        """Closed, and perhaps not committed yet."""
        self._decoded: dict[int, Segment] = {}
        self._mark = self._log.appended

    def _find(self, key: bytes) -> Sent | None:
        seen = hash(key) & HASH_MASK
        number = self.young.get(seen) or self.old.get(seen)
        if number == self.number:
            return result_of(Segment(0, 0, self.places, self._handles), key, self._settings.name)
        closed = self._segment(number) if number is not None else None
        now_ms = self.sent_ms + self._ahead_ms
        if closed is None or abs(now_ms - closed.last_ms) > self._window_ms:
            return None
        return result_of(closed, key, self._settings.name)

    def _segment(self, number: int) -> Segment | None:
        known = self._written.get(number) or self._decoded.pop(number, None)
        if known is None:
            value = self._store.get(SEEN, sequence_key(number))
            if value is None:
                return None
            try:
                known = decode_segment(value)
            except struct.error:
                return None
        self._decoded[number] = known
        if len(self._decoded) > _DECODED:
            del self._decoded[next(iter(self._decoded))]
        return known

    def _is_written(self, number: int) -> None:
        self._written.pop(number, None)

    def _drop_old(self, now_ms: int) -> None:
        """The younger generation becomes the older one."""
        if self._first_of_old < self._first_of_young:
            self._store.delete_range(
                SEEN, sequence_key(self._first_of_old), sequence_key(self._first_of_young)
            )
            self._known_since_ms = self._began_ms
        self.old, self.young = self.young, {}
        self._first_of_old, self._first_of_young = self._first_of_young, self.number
        self._began_ms = now_ms
        self._tell_window()

    def _tell_window(self) -> None:
        """Log once that the window has become shorter than configured, until it is as configured again."""
        known_ms = self.known_ms
        if known_ms >= self._window_ms:
            self._is_short = False
        elif not self._is_short:
            self._is_short = True
            # Each half must last for the window; the one that was just filled lasted for `known_ms`.
            enough = 2 * self._most * self._window_ms // max(known_ms, 1)
            _log.warning(
                "a repeated send is recognised for %.0f s, not for the %.0f s of embedded.dedup_window_s:"
                " more is sent in that time than embedded.dedup_max_ids = %d;"
                " at this rate %d would be needed, which take %d MiB of memory",
                known_ms / 1000,
                self._window_ms / 1000,
                self._settings.dedup_max_ids,
                enough,
                enough * _BYTES_PER_ID >> 20,
            )

    def _load_segments(self, now_ms: int) -> int | None:
        """Enter the hashes of the segments that count; the time since which sends are in none of them."""
        since_ms, first = None, True
        begun_ms, others = now_ms, False
        for key, value in self._store.scan(SEEN, b""):
            number = int.from_bytes(key[:8], "big")
            if len(key) > 8:
                if number == self.number:
                    self._load_held(key, value)
                continue
            self.number = number + 1
            try:
                last_ms, since_ms, keys = keys_of(value)
            except struct.error as error:
                self._set_aside(key, value, error)
                continue
            if first:
                self._first_of_old = self._first_of_young = number
                self._began_ms, first = last_ms, False
                begun_ms, others = last_ms, number > 1
            if abs(now_ms - last_ms) <= self._window_ms:
                self.young.update((hash(key) & HASH_MASK, number) for key in keys)
            if len(self.young) >= self._most:
                self._drop_old(last_ms)
        if others and len(self) >= self._most and self._known_since_ms is None:
            # What came before the first segment was forgotten for want of room, and not by its age.
            self._known_since_ms = begun_ms
        return since_ms

    def _load_held(self, stored: bytes, value: bytes) -> None:
        """Remember a message that was held back when its segment was being filled."""
        key = stored[8:]
        try:
            self.places[key], self._handles[key] = decode_held(value)
        except struct.error as error:
            self._set_aside(stored, value, error)
        else:
            self.young[hash(key) & HASH_MASK] = self.number

    def _set_aside(self, key: bytes, value: bytes, why: struct.error) -> None:
        self._log.damages.move(SEEN, [(key, value)], why)
        self._store.delete(SEEN, key)

    def _recall_end(self, queue: QueueState, oldest_ms: int, most: int) -> int:
        """Remember what lies at the end of a queue and in no segment; the number of records read."""
        topic, queue_id = queue.topic, queue.queue_id
        read = 0
        for offset, record in self._from_end(queue, most):
            read += 1
            decoded = decode_sound(record) if record is not None else None
            if decoded is None:
                continue
            if decoded.store_ms < oldest_ms:
                break
            message_id = find_property(decoded.properties, _UNIQ_KEY)
            # What a transaction delivered was sent as a half message, and is in a segment.
            if not message_id or decoded.prepared_offset:
                continue
            key = message_id + topic.mark
            known = self._find(key)
            if known is None:
                self.young[hash(key) & HASH_MASK] = self.number
                self.places[key] = place_of(queue_id, offset)
            elif (known.queue_id, known.offset) == (queue_id, offset) and not known.recall_handle:
                break  # and so is all that was sent to this queue before it
        return read

    def _from_end(self, queue: QueueState, most: int) -> Iterator[tuple[int, bytes | None]]:
        """The last records of a queue, at most so many, with their offsets; the last one first."""
        topic, queue_id = queue.topic, queue.queue_id
        if topic.compacted:
            # Most offsets may have none: to ask for each of them would take all that a start may read.
            begin = message_key(topic.id, queue_id, queue.minimum)
            end = message_key(topic.id, queue_id, queue.maximum)
            for key, record in islice(self._store.scan_back(MESSAGES, begin, end), most):
                yield split_message_key(key)[2], record
            return
        for offset in range(queue.maximum - 1, max(queue.minimum, queue.maximum - most) - 1, -1):
            yield offset, self._log.get(topic, queue_id, offset)
