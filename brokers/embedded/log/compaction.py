"""Compaction: of each key of a queue the newest message stays, at its offset; older ones are removed.

An index in the store has the offset of each key's newest message. Every message is examined once, after it
was stored: the message that the index has for its key is removed, and the new one takes its place. So the
work is proportional to new messages, memory holds nothing, and each step is one batch: a kill leaves the
queue as it was before or after the step.

A message without a body is a tombstone: it removes earlier messages like any other, is kept for
`tombstone_retention_ms` so that readers see it, and is removed then. The last message of a queue
always stays, because offsets continue after it. The queue's minimum stays, too: what compaction removed is
no gap for a reader that continues from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

from brokers.embedded.catalog.catalog import Catalog, QueueState, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import decode_sound
from brokers.embedded.storage.keys import (
    COMPACTED,
    COMPACTION_DUE,
    COMPACTION_KEY,
    COMPACTION_STATE,
    HOUR_MS,
    INDEX,
    MESSAGES,
    compaction_key,
    compaction_state,
    index_key,
    message_key,
    split_compaction_state,
    split_tombstone_key,
    text_hash,
    tombstone_key,
)
from brokers.embedded.storage.store import Store
from popgate.messages.compaction_key import compaction_key_of
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property
from popgate.wire.messages.records import Record

_AT_ONCE = 64
"""Messages that one step looks at, or tombstones that it removes."""
_BYTES_AT_ONCE = 1024 * 1024
_LOOK = 8
"""What a queue costs of which nothing is new."""
_LEAST_RECLAIMED = 8192
"""Fewer holes than this, or than messages that stay, are left to RocksDB: who reads passes over them."""
_DIGEST_BYTES = 16
_KEYS, _UNIQ_KEY = KEYS.encode(), UNIQ_KEY.encode()


class Compaction:
    """Adds to the store's batch; the caller commits before the next step."""

    def __init__(
        self, store: Store, log: MessageLog, catalogue: Catalog, settings: EmbeddedSettings, *, written: int
    ) -> None:
        self._store = store
        self._log = log
        self._catalogue = catalogue
        self._tombstone_ms = settings.tombstone_retention_ms
        self._written = written

    def work(self, topic: Topic, queue: QueueState, now_ms: int) -> Iterator[int]:
        """Bring a queue up to date. Yields what a step cost; `written` when that must be written first."""
        cleaning = _CompactionProgress(self._store, topic, queue)
        # What comes meanwhile is for the next round: else a busy queue would keep all others waiting.
        end = queue.visible
        yield _LOOK
        while self._is_there(topic) and cleaning.position < end:
            self._look_on(cleaning, end, now_ms)
            yield self._written
        while self._is_there(topic) and self._remove_tombstones(cleaning, now_ms):
            yield self._written

    def _is_there(self, topic: Topic) -> bool:
        return self._catalogue.topic_by_id(topic.id) is topic

    def _look_on(self, cleaning: _CompactionProgress, end: int, now_ms: int) -> None:
        """Look at the next messages below `end`. All is read first: a read that fails has changed nothing."""
        queue, log = cleaning.queue, self._log
        newest: dict[bytes, int] = {}
        tombstones: list[tuple[int, bytes]] = []
        older: list[tuple[int, Record | None]] = []
        count = size = 0
        position = end
        for offset, record in log.read(cleaning.topic, queue.queue_id, cleaning.position, end):
            count, size = count + 1, size + len(record)
            digest, empty = _digest_and_emptiness(record)
            if digest:
                before = newest.get(digest)
                if before is None:
                    before = cleaning.newest(digest)
                if before is not None and before < offset:
                    removed = log.get(cleaning.topic, queue.queue_id, before)
                    if removed is not None:
                        older.append((before, decode_sound(removed)))
                        size += len(removed)
                newest[digest] = offset
            if empty:
                tombstones.append((offset, digest))
            if count >= _AT_ONCE or size >= _BYTES_AT_ONCE:
                position = offset + 1
                break
        for digest, offset in newest.items():
            self._store.put(COMPACTED, cleaning.key(digest), offset.to_bytes(8, "big"))
        for offset, digest in tombstones:
            self._store.put(COMPACTED, cleaning.due_key(now_ms + self._tombstone_ms, offset), digest)
        self._remove(cleaning, older, position)

    def _remove_tombstones(self, cleaning: _CompactionProgress, now_ms: int) -> bool:
        """Remove those whose time is over, some of them; whether there were any."""
        due: list[tuple[bytes, int, bytes]] = []
        older: list[tuple[int, Record | None]] = []
        size = 0
        for key, digest in self._store.scan(
            COMPACTED, cleaning.due_key(0, 0), cleaning.due_key(now_ms + 1, 0)
        ):
            offset = split_tombstone_key(key)[4]
            if offset >= cleaning.queue.visible - 1:
                continue
            due.append((key, offset, digest))
            if len(due) >= _AT_ONCE:
                break
        if not due:
            return False
        ended: list[bytes] = []
        for key, offset, digest in due:
            ended.append(key)
            if digest:
                if cleaning.newest(digest) != offset:
                    continue  # a newer message of its key has removed it
                ended.append(cleaning.key(digest))
            record = self._log.get(cleaning.topic, cleaning.queue.queue_id, offset)
            if record is not None:
                older.append((offset, decode_sound(record)))
                size += len(record)
            if size >= _BYTES_AT_ONCE:
                break
        for key in ended:
            self._store.delete(COMPACTED, key)
        self._remove(cleaning, older, cleaning.position)
        return True

    def _remove(
        self, cleaning: _CompactionProgress, older: list[tuple[int, Record | None]], position: int
    ) -> None:
        """Remove messages and what the index has of them, and say how far compaction is."""
        store, topic, queue = self._store, cleaning.topic, cleaning.queue
        for offset, decoded in older:
            store.delete(MESSAGES, message_key(topic.id, queue.queue_id, offset))
            if decoded is not None:
                for hashed in _hashes(decoded):
                    hour = decoded.store_ms // HOUR_MS
                    store.delete(INDEX, index_key(hour, topic.id, hashed, queue.queue_id, offset))
        queue.holes += len(older)
        cleaning.position = position
        cleaning.unreclaimed += len(older)
        if cleaning.unreclaimed >= max(_LEAST_RECLAIMED, queue.kept):
            cleaning.unreclaimed = 0
            begin, end = (message_key(topic.id, queue.queue_id, at) for at in (0, position))
            store.after_commit(partial(store.reclaim, MESSAGES, begin, end))
        cleaning.keep()


class _CompactionProgress:
    """The progress of compaction in a queue. `unreclaimed`: holes whose disk space is not yet freed."""

    def __init__(self, store: Store, topic: Topic, queue: QueueState) -> None:
        self.topic = topic
        self.queue = queue
        self._store = store
        self._place = topic.id, queue.queue_id
        self.position, self.unreclaimed = queue.minimum, 0
        kept = store.get(COMPACTED, compaction_key(*self._place, COMPACTION_STATE))
        if kept is not None:
            self.position, _, self.unreclaimed = split_compaction_state(kept)

    def keep(self) -> None:
        self._store.put(
            COMPACTED,
            compaction_key(*self._place, COMPACTION_STATE),
            compaction_state(self.position, self.queue.holes, self.unreclaimed),
        )

    def newest(self, digest: bytes) -> int | None:
        """The offset of the newest message of a key, of those that were looked at."""
        value = self._store.get(COMPACTED, self.key(digest))
        return None if value is None else int.from_bytes(value, "big")

    def key(self, digest: bytes) -> bytes:
        return compaction_key(*self._place, COMPACTION_KEY) + digest

    def due_key(self, due_ms: int, offset: int) -> bytes:
        return tombstone_key(*self._place, COMPACTION_DUE, due_ms, offset)


def _digest_and_emptiness(record: bytes) -> tuple[bytes, bool]:
    """The digest of a message's key, and whether it goes by itself after a time.

    So does what has no key: it came when the topic asked for none. What is damaged stays.
    """
    decoded = decode_sound(record)
    if decoded is None:
        return b"", False
    key = compaction_key_of(decoded.properties)
    return (blake2b(key, digest_size=_DIGEST_BYTES).digest(), not decoded.body) if key else (b"", True)


def _hashes(record: Record) -> Iterator[int]:
    """Under what the index has a message: its id, each of its keys."""
    message_id = find_property(record.properties, _UNIQ_KEY)
    if message_id:
        yield text_hash(b"i", message_id)
    keys = find_property(record.properties, _KEYS) or b""
    for key in {keys, *keys.split()}:
        yield text_hash(b"k", key)
