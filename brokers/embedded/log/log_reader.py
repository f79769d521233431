"""Reads records of a queue, each of which lies in the store alone or in a block with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.storage.keys import MESSAGES, message_key
from brokers.embedded.storage.record_blocks import MOST_RECORDS, RecordBlock, block_of, expand
from brokers.embedded.storage.store import Store

_FEW: Final = 4
"""So many records cost less one by one than a scan does to begin."""
_KEPT: Final = 64
"""Queues whose block that was read last is kept, 3 MiB at most: those who go on read from it."""


class LogReader:
    """Reads what is committed. What is below the minimum of a queue is gone, even if its block is there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: dict[QueueState, RecordBlock] = {}

    def get(self, queue: QueueState, offset: int) -> bytes | None:
        """The record at an offset; None where there is none, or none any more."""
        block = self._kept(queue, offset)
        value = self._store.get(MESSAGES, _key(queue, offset)) if block is None else None
        return self._record_at(queue, offset, value, block)

    def get_many(self, queue: QueueState, offsets: Iterable[int]) -> list[bytes | None]:
        """Those at several offsets."""
        offsets = list(offsets)
        values = self._store.get_many(MESSAGES, [_key(queue, offset) for offset in offsets])
        return [
            self._record_at(queue, offset, value, self._kept(queue, offset))
            for offset, value in zip(offsets, values, strict=True)
        ]

    def read(self, queue: QueueState, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Records with begin <= offset < end, in order, as (offset, record). Never keep it over an await."""
        end = min(end, queue.visible)
        if begin >= end:
            return  # a look-up may have kept a block that is written and not yet visible
        block = self._kept(queue, begin)
        if block is not None:
            yield from _pairs(block, max(begin, queue.minimum), end)
            begin = block.last + 1
        if end - begin <= _FEW:
            for offset in range(begin, end):
                stored = self.get(queue, offset)
                if stored is not None:
                    yield offset, stored
            return
        begin = max(begin, queue.minimum)
        for key, value in self._store.scan(MESSAGES, _key(queue, begin), _key(queue, end)):
            last = int.from_bytes(key[6:], "big")
            block = block_of(value, last)
            if block is None:
                yield last, value
            else:
                yield from _pairs(block, begin, end)
            begin = last + 1
        block = self._block_with(queue, end - 1) if begin < end else None
        if block is not None:
            yield from _pairs(block, begin, end)

    def values(self, queue: QueueState, begin: int, end: int) -> Iterator[bytes]:
        """What is stored of the same records, each a record or a block of several, in less time than `read`.

        The last block may end behind `end`; the first one may begin before `begin` when it is read from the
        store, but not when it was kept. What cannot be read ends them, too.
        """
        end = min(end, queue.visible)
        if begin >= end:
            return  # as in `read`
        block = self._kept(queue, begin)
        if block is not None:
            yield block.rest(begin)
            begin = block.last + 1
        if begin >= end:
            return
        yield from map(expand, self._store.values(MESSAGES, _key(queue, begin), _key(queue, end)))
        # Who has enough asks for no more. This is not read when the last record has an entry.
        block = self._block_with(queue, end - 1)
        if block is not None:
            yield block.rest(begin)

    # -- inside -------------------------------------------------------------------------------

    def _kept(self, queue: QueueState, offset: int) -> RecordBlock | None:
        """The block that is kept of a queue, if it has the record at an offset."""
        block = self._recent.get(queue)
        return block if block is not None and block.first <= offset <= block.last else None

    def _record_at(
        self, queue: QueueState, offset: int, value: bytes | None, block: RecordBlock | None
    ) -> bytes | None:
        """As `get`, where this block is kept, or the store has this value under the record's own key."""
        if block is None:
            if value is None:
                block = self._block_with(queue, offset)
            else:
                block = block_of(value, offset)
                if block is not None:
                    self._keep(queue, block)
            if block is None:
                return value
        return block.record(offset) if offset >= queue.minimum else None

    def _block_with(self, queue: QueueState, offset: int) -> RecordBlock | None:
        """The block in which a record lies that is not its last one; None: there is none."""
        if queue.topic.compacted or not queue.minimum <= offset < queue.visible:
            return None  # of compacted topics every record has an entry
        entry = self._store.first(MESSAGES, _key(queue, offset), _key(queue, offset + MOST_RECORDS))
        if entry is None:
            return None
        block = block_of(entry[1], int.from_bytes(entry[0][6:], "big"))
        if block is None or not block.first <= offset < block.last:
            return None
        self._keep(queue, block)
        return block

    def _keep(self, queue: QueueState, block: RecordBlock) -> None:
        recent = self._recent
        recent.pop(queue, None)
        recent[queue] = block
        if len(recent) > _KEPT:
            del recent[next(iter(recent))]


def _key(queue: QueueState, offset: int) -> bytes:
    return message_key(queue.topic.id, queue.queue_id, offset)


def _pairs(block: RecordBlock, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    begin, end = max(begin, block.first), min(end, block.last + 1)
    return zip(range(begin, end), block.records(begin, end), strict=True)
