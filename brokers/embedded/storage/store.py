"""The one home of RocksDB: keyspaces, one write batch per loop turn, and what 'done' means.

A step adds its puts and deletes without awaiting in between and then awaits `commit()`: all
steps of one loop turn go to RocksDB in one atomic batch, and their futures are answered
together. With `sync` the batch is on the disk before that; with `interval` it is in the
operating system's hands (it survives `kill -9`) and on the disk at most `sync_interval`
seconds later, and the time that a sync takes; with `none` the operating system decides.

Writing is done in the loop's thread: RocksDB's binding holds the interpreter's lock while it
writes, and it takes microseconds. Syncing is done in a thread of its own, with the lock
released; batches written meanwhile are covered together by the next sync.

After a failed write RocksDB refuses all further ones. What was not written is told as not done;
what was written and maybe not synced, as unknown. The store then fails every commit at once, and
tries to open the files again, at growing intervals; when that works, `on_failure` tells the owner
to rebuild from the store what it has in memory, and writing goes on. Meanwhile no file is held open,
so that a disk which failed can be taken away and mended. Where a disk is merely full or read-only, what
is there can be read: then the files are open for reading, `on_reading` has been called in the same way,
and before they are closed for a try it is checked whether anything can be written at all. When the disk
is not where it was (`umount --lazy`) they are let go of at the next try.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum, unique
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter

from rocksdict import WriteBatch

from brokers.embedded.storage.column_families import ColumnFamilies
from brokers.embedded.storage.commit_group import CommitGroup
from brokers.embedded.storage.io_timing import IoTiming
from brokers.embedded.storage.keys import INDEX, MESSAGES
from brokers.embedded.storage.migrations import bring_up_to_date
from brokers.embedded.storage.open_rocksdb import is_refusal
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable

_log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 5.0


@unique
class Durability(Enum):
    SYNC = "sync"
    INTERVAL = "interval"
    NONE = "none"


class Store(ColumnFamilies):
    """RocksDB with group commit. Everything belongs to the loop's thread."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durability: Durability = Durability.INTERVAL,
        sync_interval: float = 0.1,
        write_buffer_bytes: int = 16 * 1024 * 1024,
        cache_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__(path, write_buffer_bytes=write_buffer_bytes, cache_bytes=cache_bytes)
        self.durability = durability
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called after a failed write, once the store can be used again: memory may be ahead of it."""
        self.on_reading: Callable[[], None] | None = None
        """Called when the store can be read, but not written: memory may be ahead of it."""
        self.on_syncing: Callable[[], None] | None = None
        self.on_synced: Callable[[], None] | None = None
        """What was written when `on_syncing` was called is on the disk when `on_synced` is."""
        self.writes, self.syncs = IoTiming(), IoTiming()
        self._syncing_since = 0.0
        self.turn = 0
        """The number of the batch being filled; differs as soon as it is handed over or dropped."""
        self._clock = clock
        self._sync_interval = sync_interval
        self._batch = WriteBatch(raw_mode=True)
        self._after: list[Callable[[], None]] = []
        self._answers: list[asyncio.Future[None]] = []
        self._pending: asyncio.Future[None] | None = None
        self._ordered = False
        self._written, self._covered = list[CommitGroup](), list[CommitGroup]()
        self._syncing: asyncio.Future[None] | None = None
        self._sync_call: Future[None] | None = None
        self._sync_timer: Timer | None = None
        self._unsynced_since: float | None = None
        self._failure: BrokerUnavailable | None = None
        self._retry_timer: Timer | None = None
        self._retry_s = _FIRST_RETRY_S
        self._sync_thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        state = "closed" if self._db is None else "open" if self._failure is None else "failing"
        return f"<Store {self.path} {state} {self.durability.value}>"

    @property
    def failing(self) -> bool:
        """Whether commits fail at once, until the store has been opened again."""
        return self._failure is not None

    @property
    def trouble(self) -> str:
        """Why commits fail at once; empty when they do not."""
        return "" if self._failure is None else self._failure.sentence

    @property
    def filling(self) -> bool:
        """Whether something was added that no commit has taken yet."""
        return bool(self._after) or not self._batch.is_empty()

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Open, create or upgrade. Raises BrokerUnavailable: locked, not writable, damaged, too new."""
        self._closing, self._identity = False, ""
        self._open_files()
        try:
            bring_up_to_date(self)
        except BaseException as error:
            self._take_batch()
            self._close_files(f"the store in {self.path} was refused")
            if isinstance(error, BrokerUnavailable) or not isinstance(error, Exception):
                raise
            raise BrokerUnavailable(f"the store in {self.path} cannot be upgraded: {error}") from error
        self._failure, self._retry_s = None, _FIRST_RETRY_S

    def close(self) -> None:
        """Write and sync the pending batch, resolve its futures, and release the folder."""
        self._closing = True
        for timer in (self._sync_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._sync_timer = self._retry_timer = None
        self._stop_threads()
        closed = BrokerUnavailable(f"the store in {self.path} is closed")
        last = self._take_batch()
        groups = [*self._covered, *self._written, last[1]]
        last[1].written = last[0].is_empty() and len(groups) > 1
        # The loop has not told yet how the sync under way ended, and another one does not make it good.
        error = self._sync_call.exception() if self._syncing is not None and self._sync_call else None
        self._covered, self._written, self._syncing, self._unsynced_since = [], [], None, None
        failure = self._failure or (self._told(error) if error else closed if self._db is None else None)
        if self._db is not None and failure is None:
            try:
                self._db.write(last[0])
                last[1].written = True
                self._db.flush_wal(True)
            except Exception as why:
                failure = self._told(why)
        for group in groups:
            if failure is None:
                group.finish()
            else:
                group.fail(failure)
        del last  # it holds on to the keyspaces
        self._failure = None
        self._close_files(closed.sentence)

    # -- writing: add, then await commit() ----------------------------------------------------

    def put(self, space: str, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._handles[space])

    def put_message(self, key: bytes, record: bytes, index: bytes) -> None:
        """A record and its entry in the index: two puts in one call, for every message."""
        put, handles = self._batch.put, self._handles
        put(key, record, handles[MESSAGES])
        put(index, b"", handles[INDEX])

    def put_messages(self, keys: Iterable[bytes], records: Iterable[bytes], index: Iterable[bytes]) -> None:
        """The same for several: records by their keys, and all entries of the index."""
        put = self._batch.put
        # A loop without a step of Python for each of them.
        deque(map(put, keys, records, repeat(self._handles[MESSAGES])), maxlen=0)
        deque(map(put, index, repeat(b""), repeat(self._handles[INDEX])), maxlen=0)

    def delete(self, space: str, key: bytes) -> None:
        self._batch.delete(key, self._handles[space])

    def delete_range(self, space: str, begin: bytes, end: bytes) -> None:
        """Delete the keys in [begin, end)."""
        self._batch.delete_range(begin, end, self._handles[space])

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call once this turn's batch is done, before any of its futures is answered; not if it fails."""
        self._after.append(callback)

    def commit(self) -> asyncio.Future[None]:
        """The future of this turn's batch; shared by all steps of the turn.

        Await it with `asyncio.shield` where the caller may be cancelled: others wait on it too.
        It fails with BrokerUnavailable when the batch cannot be written, and with BrokerTimeout
        when it, or one before it, was written and cannot be synced: nobody knows whether that lasts.
        """
        if self._pending is not None:
            return self._pending
        shared = self.settled()
        if self._ordered:  # not when the store is failing: then it is answered, and forgotten
            self._pending = shared
        return shared

    def settled(self) -> asyncio.Future[None]:
        """As `commit`, but a separate future, which the caller may cancel."""
        loop = asyncio.get_running_loop()
        own = loop.create_future()
        self._answers.append(own)
        if self._failure is not None:
            self._take_batch()[1].fail(self._failure)
        elif not self._ordered:
            self._ordered = True
            loop.call_soon(self._write)
        return own

    def abandon(self, error: BaseException) -> None:
        """A step failed half-way: drop this turn's batch, and have memory rebuilt at once.

        Callers that wait for the turn get an error that nothing was changed; earlier turns are unaffected.
        """
        dropped = BrokerUnavailable("nothing was changed: a step of the same moment went wrong")
        dropped.__cause__ = error
        self._take_batch()[1].fail(dropped)
        if self.on_failure is not None and self._failure is None:
            try:
                self.on_failure(error)
            except Exception as again:
                self._fail(again)

    def write_now(self) -> None:
        """Write and sync what was added, at once. For the time before the loop runs (upgrades)."""
        batch, group = self._take_batch()
        db = self._opened()
        db.write(batch)
        db.flush_wal(True)
        group.finish()

    def _take_batch(self) -> tuple[WriteBatch, CommitGroup]:
        taken = self._batch, CommitGroup(self._after, self._answers)
        self._batch, self._after, self._answers = WriteBatch(raw_mode=True), [], []
        self._pending, self._ordered = None, False
        self.turn += 1
        return taken

    def _write(self) -> None:
        if not self._ordered:
            return  # written, failed or closed meanwhile
        batch, group = self._take_batch()
        try:
            db, added = self._opened(), not batch.is_empty()
            if added:
                began = perf_counter()
                db.write(batch)
                self.writes.add(perf_counter() - began)
        except Exception as error:
            del batch
            self._fail(error, group)
            return
        # Also of one that adds nothing, as a repeated send: what it waits for was written.
        group.written = added or bool(self._written) or self._syncing is not None
        self._retry_s = _FIRST_RETRY_S
        if self.durability is Durability.SYNC:
            if added or self._written:
                self._written.append(group)
                self._start_sync()
                return
            if self._syncing is not None:  # what it must wait for is already being synced
                self._covered.append(group)
                return
        if self.durability is Durability.INTERVAL and added and self._unsynced_since is None:
            self._unsynced_since = self._clock.monotonic()
            self._arm_sync()
        group.finish()

    # -- syncing ------------------------------------------------------------------------------

    def _arm_sync(self) -> None:
        if self._syncing is None and self._sync_timer is None and self._unsynced_since is not None:
            waited = self._clock.monotonic() - self._unsynced_since
            self._sync_timer = self._clock.call_later(self._sync_interval - waited, self._sync_is_due)

    def _sync_is_due(self) -> None:
        self._sync_timer = None
        if self._unsynced_since is not None:
            self._start_sync()

    def _start_sync(self) -> None:
        db = self._db
        if self._syncing is not None or db is None or self._failure is not None:
            return
        if self._sync_thread is None:
            self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="popgate-store-sync")
        self._covered, self._written, self._unsynced_since = self._written, [], None
        if self.on_syncing is not None:
            self.on_syncing()
        self._syncing_since = perf_counter()
        self._sync_call = self._sync_thread.submit(db.flush_wal, True)
        self._syncing = asyncio.wrap_future(self._sync_call)
        self._syncing.add_done_callback(self._sync_ended)

    def _sync_ended(self, sync: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if sync.cancelled() else sync.exception()
        if sync is not self._syncing:
            return  # the store was closed meanwhile, and has answered
        self._syncing = None
        covered, self._covered = self._covered, []
        if error is not None:
            self._fail(error, *covered)
            return
        self.syncs.add(perf_counter() - self._syncing_since)
        if self.on_synced is not None:
            self.on_synced()
        for group in covered:
            group.finish()
        if self._written:
            self._start_sync()
        self._arm_sync()

    # -- failing and coming back --------------------------------------------------------------

    def _told(self, error: BaseException) -> BrokerUnavailable:
        failure = BrokerUnavailable(f"the store in {self.path} cannot be written: {error}")
        failure.__cause__ = error
        return failure

    def _fail(self, error: BaseException, *groups: CommitGroup) -> None:
        """Fail these groups and all that were built on top of them; then try to come back.

        A batch whose sync is under way is left to it: it was written before.
        """
        if self._failure is None:
            self._failure = self._told(error)
            _log.error(
                "%s: what must be stored is refused until it can be, which is tried every few seconds",
                self._failure.sentence,
            )
        unwritten = self._take_batch()[1]
        written, self._written = self._written, []
        unwritten.written = any(group.written for group in (*groups, *written))  # it may repeat a send
        for group in (*groups, *written, unwritten):
            group.fail(self._failure)
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        self._unsynced_since = None
        if self._retry_timer is None:
            self._retry_timer = self._clock.call_later(self._retry_s, self._come_back)
            self._retry_s = min(self._retry_s * 2, _LONGEST_RETRY_S)

    def _come_back(self) -> None:
        self._retry_timer = None
        failure = self._failure
        if failure is None:
            return
        again = partial(self._clock.call_later, self._retry_s, self._come_back)
        if self._syncing is not None:
            self._retry_timer = again()
            return
        if self._only_read and self._is_refused():
            self._retry_timer = again()
            return
        self._stop_threads()
        self._take_batch()
        self._close_files(failure.sentence)
        try:
            self._open_files()
            self._failure = None
            if self.on_failure is not None:
                self.on_failure(failure.__cause__ or failure)
        except Exception as error:
            self._failure = error if isinstance(error, BrokerUnavailable) else self._told(error)
            self._retry_s = min(self._retry_s * 2, _LONGEST_RETRY_S)
            self._retry_timer = again()
            if self._db is None and is_refusal(error):
                self._read_meanwhile(self._failure)

    def _read_meanwhile(self, failure: BrokerUnavailable) -> None:
        try:
            self._open_to_read()
            if self.on_reading is not None:
                self.on_reading()
        except Exception as error:
            _log.warning("the store in %s cannot be read either: %s", self.path, error)
            self._close_files(failure.sentence)
        self._take_batch()[1].fail(failure)

    def _stop_threads(self) -> None:
        self._stop_reclaiming()
        thread, self._sync_thread = self._sync_thread, None
        if thread is not None:
            thread.shutdown(wait=True)
