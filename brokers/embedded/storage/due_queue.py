"""A keyspace whose keys begin with their due time: taken in order, in bounded slices.

Memory holds only the lowest due time and the key below which nothing is left, so
that neither a million waiting keys nor the tombstones of taken ones cost anything. Reads do not
see the batch that is being filled; what this turn added and removed is remembered until it is written.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokers.embedded.storage.store import Store

_read_due = int.from_bytes
_DUE_BYTES = 8


class DueQueue:
    """What is due when, in one keyspace. Adds to the store's batch; the caller commits."""

    __slots__ = ("_added", "_low", "_next", "_removed", "_space", "_store", "_turn")

    def __init__(self, store: Store, space: str) -> None:
        self._store = store
        self._space = space
        self._low = b""
        self._next: int | None = None
        self._turn = -1
        self._added: bytes | None = None
        self._removed: set[bytes] = set()

    def __repr__(self) -> str:
        return f"<DueQueue {self._space} next {self._next}>"

    def load(self) -> None:
        """Load from the store, replacing the contents of memory."""
        self._low, self._turn = b"", -1
        self._added = None
        self._removed.clear()
        lowest = self._store.first(self._space, b"")
        if lowest is None:
            self._next = None
        else:
            self._low, self._next = lowest[0], _due_of(lowest[0])

    def deadline(self) -> int | None:
        """Wall time in ms at which the next key is due; the past when there is more to take now."""
        return self._next

    def add(self, key: bytes, value: bytes) -> None:
        self._begin_turn()
        self._store.put(self._space, key, value)
        self._removed.discard(key)
        if key < self._low:
            self._low = key
        if self._added is None or key < self._added:
            self._added = key
        due = _due_of(key)
        if self._next is None or due < self._next:
            self._next = due

    def remove(self, key: bytes) -> None:
        """Remove a key that is there. The deadline may stay: a tick too many finds nothing to do."""
        self._begin_turn()
        self._store.delete(self._space, key)
        self._removed.add(key)

    def within(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Committed pairs with begin <= key < end that were not removed since."""
        self._begin_turn()
        for key, value in self._store.scan(self._space, max(begin, self._low), end):
            if key not in self._removed:
                yield key, value

    def take(self, now_ms: int, most: int, most_bytes: int) -> list[tuple[bytes, bytes]]:
        """Remove and return what is due, lowest first: at most `most`, or about `most_bytes` of values."""
        self._begin_turn()
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        following: int | None = None
        low = self._low
        for key, value in self._store.scan(self._space, self._low):
            if key in self._removed:
                continue
            due = _due_of(key)
            if due > now_ms or len(taken) >= most or size >= most_bytes:
                low, following = key, due
                break
            low = key
            taken.append((key, value))
            size += len(value)
        for key, _ in taken:
            self._store.delete(self._space, key)
            self._removed.add(key)
        self._low = low
        if self._added is not None:
            # Not written yet, so not seen above.
            self._low = min(low, self._added)
            added = _due_of(self._added)
            following = added if following is None else min(following, added)
        self._next = following
        return taken

    def _begin_turn(self) -> None:
        if self._turn != self._store.turn:
            self._turn = self._store.turn
            self._added = None
            self._removed.clear()


def _due_of(key: bytes) -> int:
    return _read_due(key[:_DUE_BYTES], "big")
