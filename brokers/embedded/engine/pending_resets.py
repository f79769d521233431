"""Resets from which no reader has started yet: until then a reader's old position cannot overwrite them.

Readers at several gateways may share the broker, and only the gateway that made a reset notifies its readers.
The others learn of it when they commit next, which clients do every 5 s. RocketMQ holds resets in the
same way, but only in memory (ConsumerOffsetManager.assignResetOffset); here they survive a restart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from brokers.embedded.storage.keys import META, progress_key, split_progress_key
from brokers.embedded.storage.store import Store

HELD_MS: Final = 600_000
"""For which a reset waits for its reader. A group that no longer has any needs no more."""
MOST: Final = 65_536
"""Queues with a reset that waits; beyond that the oldest one waits no longer."""
_PREFIX: Final = b"pending reset "


class ResetQueue(NamedTuple):
    """One group on one queue, by their ids."""

    group_id: int
    topic_id: int
    queue_id: int


class PendingResets:
    """Adds to the store's batch; the caller commits. All times are steady ms since the epoch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._until_ms: dict[ResetQueue, int] = {}

    def __repr__(self) -> str:
        return f"<PendingResets {len(self._until_ms)}>"

    def load(self, now_ms: int) -> None:
        """Take up what the store has; what has waited long enough is deleted there."""
        entries = [
            (int.from_bytes(value, "big"), key)
            for key, value in self._store.scan(META, _PREFIX, _PREFIX + b"\xff" * 16)
        ]
        self._until_ms.clear()
        for until_ms, key in sorted(entries):
            if now_ms < until_ms <= now_ms + HELD_MS:
                self._until_ms[ResetQueue(*split_progress_key(key[len(_PREFIX) :]))] = until_ms
            else:
                self._store.delete(META, key)

    def begin(self, queue: ResetQueue, now_ms: int) -> None:
        """The group was reset there."""
        self.end(queue)  # so that the dictionary is in the order of time
        while self._until_ms:
            oldest, until_ms = next(iter(self._until_ms.items()))
            if until_ms > now_ms and len(self._until_ms) < MOST:
                break
            self.end(oldest)
        self._until_ms[queue] = now_ms + HELD_MS
        self._store.put(META, _key(queue), (now_ms + HELD_MS).to_bytes(8, "big"))

    def is_pending(self, queue: ResetQueue, now_ms: int) -> bool:
        return self._until_ms.get(queue, now_ms) > now_ms

    def end(self, queue: ResetQueue) -> None:
        """A reader started there, or a client that is no reader set the position."""
        if self._until_ms.pop(queue, None) is not None:
            self._store.delete(META, _key(queue))


def _key(queue: ResetQueue) -> bytes:
    return _PREFIX + progress_key(*queue)
