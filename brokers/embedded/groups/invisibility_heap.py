"""The times at which held messages become visible again: one heap for all ledgers of the broker.

Messages taken together share one item, because they expire together. Items are never removed from
the middle: one whose message was finished or renewed meanwhile is recognised when it is reached, and
the heap is swept when more than half of it may be such items.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from brokers.embedded.groups.entries import Entry

_log = logging.getLogger(__name__)
_SMALLEST_SWEEP = 4_096
_TRIED_AGAIN_MS = 1_000


class Holder(Protocol):
    """What the schedule knows of a ledger."""

    entries: dict[int, Entry]

    def fall_due(self, offset: int, entry: Entry, now_ms: int) -> int: ...


class InvisibilityHeap:
    """A timed machine over the ledgers: `tick` passes them expired messages."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Holder, Entry | None, Sequence[int]]] = []
        self._count = count()
        self._size = 0
        self._sweep_at = _SMALLEST_SWEEP

    def __repr__(self) -> str:
        return f"<InvisibilityHeap offsets {self._size} next {self.deadline()}>"

    def __len__(self) -> int:
        return self._size

    def add(self, due_ms: int, ledger: Holder, entry: Entry | None, offsets: Sequence[int]) -> None:
        """These offsets of a ledger fall due at `due_ms`, if they still have this entry then.

        Without an entry: if the entries they have then are due at that time. The ledger must bear
        to be told twice.
        """
        heappush(self._heap, (due_ms, next(self._count), ledger, entry, offsets))
        self._size += len(offsets)
        if self._size >= self._sweep_at:
            self._sweep()

    def deadline(self) -> int | None:
        """The time, in ms, at which `tick` has something to do at the earliest."""
        return self._heap[0][0] if self._heap else None

    def tick(self, now_ms: int, looks: int) -> None:
        """Pass expired messages to their ledgers, the earliest first, up to the cost `looks`.

        A failure with one message is logged and retried later: it must not delay
        the others. A ledger that raises has changed nothing.
        """
        heap = self._heap
        while heap and heap[0][0] <= now_ms and looks > 0:
            due_ms, _, ledger, entry, offsets = heappop(heap)
            self._size -= len(offsets)
            entries = ledger.entries
            for index, offset in enumerate(offsets):
                if looks <= 0:
                    self.add(due_ms, ledger, entry, offsets[index:])
                    break
                current = entries.get(offset)
                if current is None or (
                    current is not entry if entry is not None else current.due_ms != due_ms
                ):
                    continue
                try:
                    looks -= ledger.fall_due(offset, current, now_ms)
                except Exception:
                    _log.exception("what fell due at offset %d of %r failed", offset, ledger)
                    looks -= 1
                    self.add(now_ms + _TRIED_AGAIN_MS, ledger, current, (offset,))

    def _sweep(self) -> None:
        """Remove obsolete items."""
        kept: list[tuple[int, int, Holder, Entry | None, Sequence[int]]] = []
        self._size = 0
        for due_ms, order, ledger, entry, offsets in self._heap:
            entries = ledger.entries
            if entry is not None:
                current = [offset for offset in offsets if entries.get(offset) is entry]
            else:
                known = ((offset, entries.get(offset)) for offset in offsets)
                current = [offset for offset, now in known if now is not None and now.due_ms == due_ms]
            if current:
                kept.append((due_ms, order, ledger, entry, current))
                self._size += len(current)
        heapify(kept)
        self._heap = kept
        self._sweep_at = max(_SMALLEST_SWEEP, 2 * self._size)
