"""The one home of RocksDB: keyspaces, one write batch per loop turn, and what 'done' means.

A step adds its puts and deletes without awaiting in between and then awaits `commit()`: all
steps of one loop turn go to RocksDB in one atomic batch, and their futures are answered
together. With `sync` the batch is on the disk before that; with `interval` it is in the
operating system's hands (it survives `kill -9`) and on the disk at most `sync_interval`
seconds later; with `none` the operating system decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, unique
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from brokers.embedded.keys import INFLIGHT, META, PROGRESS, SPACES, TIMERS
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable

FORMAT = 1
"""The version of the store's layout; raised whenever an older program could misread it."""

_FORMAT_KEY = b"format"


@unique
class Durability(Enum):
    SYNC = "sync"
    INTERVAL = "interval"
    NONE = "none"


class Store:
    """RocksDB with group commit. All methods but `open` and `close` belong to the loop's thread."""

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
        self.path = path
        self.durability = durability
        self.on_failure: Callable[[BaseException], None] | None = None
        self.on_synced: Callable[[], None] | None = None
        self.turn = 0
        """Names the batch that is being collected: it grows when that batch goes to be written."""
        self._clock = clock
        self._sync_interval = sync_interval
        self._write_buffer_bytes = write_buffer_bytes
        self._cache_bytes = cache_bytes
        self._db: Rdict | None = None
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._sync_writes = WriteOptions()
        self._sync_writes.sync = True
        self._batch = WriteBatch(raw_mode=True)
        self._after: list[Callable[[], None]] = []
        self._pending: asyncio.Future[None] | None = None
        self._writing = False
        self._thread: ThreadPoolExecutor | None = None
        self._sync_timer: Timer | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._unsynced = False

    def __repr__(self) -> str:
        state = "open" if self._db is not None else "closed"
        return f"<Store {self.path} {state} {self.durability.value}>"

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the store. Raises BrokerUnavailable: locked, not writable, damaged, too new."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(self.path), self._options(), self._space_options())
        except Exception as error:
            raise BrokerUnavailable(_opening_sentence(self.path, error)) from error
        self._families = {name: self._db.get_column_family(name) for name in SPACES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in SPACES}
        try:
            self._check_format()
        except BaseException:
            self.close()
            raise
        if self.durability is not Durability.NONE:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="popgate-store")

    def close(self) -> None:
        """Close without waiting for the loop; what was committed is synced first."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(Exception):
                db.flush_wal(True)
            self._handles.clear()
            for family in self._families.values():
                family.close()
            self._families.clear()
            db.close()

    # -- writing: add, then await commit() ----------------------------------------------------

    def put(self, space: str, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._handles[space])

    def delete(self, space: str, key: bytes) -> None:
        self._batch.delete(key, self._handles[space])

    def delete_range(self, space: str, begin: bytes, end: bytes) -> None:
        """Delete the keys in [begin, end)."""
        self._batch.delete_range(begin, end, self._handles[space])

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call once this turn's batch is written, before any of its futures is answered."""
        self._after.append(callback)

    def commit(self) -> asyncio.Future[None]:
        """The future of this turn's batch; shared by all steps of the turn.

        Await it with `asyncio.shield` where the caller may be cancelled: others wait on it too.
        """
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            if not self._writing:
                loop.call_soon(self._write)
        return self._pending

    def _write(self) -> None:
        batch, after, pending = self._batch, self._after, self._pending
        if pending is None:
            return
        self._begin_turn()
        if self.durability is Durability.SYNC:
            self._writing = True
            asyncio.get_running_loop().run_in_executor(
                self._thread, self._open_db().write, batch, self._sync_writes
            ).add_done_callback(lambda done: self._written_in_thread(done, after, pending))
            return
        try:
            self._open_db().write(batch)
        except Exception as error:
            self._write_failed(error, pending)
            return
        self._finish(after, pending)
        if self.durability is Durability.INTERVAL:
            self._unsynced = True
            if self._sync_timer is None and self._syncing is None:
                self._sync_timer = self._clock.call_later(self._sync_interval, self._sync)

    def _written_in_thread(
        self, done: asyncio.Future[None], after: list[Callable[[], None]], pending: asyncio.Future[None]
    ) -> None:
        self._writing = False
        error = None if done.cancelled() else done.exception()
        if error is not None:
            # What was collected meanwhile builds on the batch that is not there: it fails with it.
            later = self._pending
            self._begin_turn()
            self._write_failed(error, pending, *([later] if later is not None else []))
            return
        if self.on_synced is not None:
            self.on_synced()
        self._finish(after, pending)
        if self._pending is not None:
            self._write()

    def _begin_turn(self) -> None:
        self.turn += 1
        self._batch, self._after, self._pending = WriteBatch(raw_mode=True), [], None

    def _finish(self, after: list[Callable[[], None]], pending: asyncio.Future[None]) -> None:
        try:
            for callback in after:
                callback()
        finally:
            if not pending.done():
                pending.set_result(None)

    def _write_failed(self, error: BaseException, *failed: asyncio.Future[None]) -> None:
        for pending in failed:
            if not pending.done():
                told = BrokerUnavailable(f"the store in {self.path} cannot be written: {error}")
                told.__cause__ = error
                pending.set_exception(told)
                pending.exception()
        if self.on_failure is not None:
            self.on_failure(error)

    def _sync(self) -> None:
        self._sync_timer = None
        if self._db is None or self._thread is None or not self._unsynced:
            return
        self._unsynced = False
        self._syncing = asyncio.get_running_loop().run_in_executor(self._thread, self._db.flush_wal, True)
        self._syncing.add_done_callback(self._synced)

    def _synced(self, done: asyncio.Future[None]) -> None:
        self._syncing = None
        error = None if done.cancelled() else done.exception()
        if error is not None:
            # Tried again below. Nothing was lost by it, and RocksDB refuses writes after a failure
            # that it cannot repair: those tell it.
            self._unsynced = True
        elif self.on_synced is not None:
            self.on_synced()
        if self._unsynced and self._db is not None and self._sync_timer is None:
            self._sync_timer = self._clock.call_later(self._sync_interval, self._sync)

    # -- reading: sees what is committed, never the pending batch -------------------------------

    def get(self, space: str, key: bytes) -> bytes | None:
        value: bytes | None = self._families[space].get(key)
        return value

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._families[space].get(keys)  # type: ignore[arg-type,assignment]
        return values

    def scan(self, space: str, begin: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with begin <= key (and key < end), in order."""
        options = None
        if end is not None:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
        cursor = self._families[space].iter(options)
        cursor.seek(begin)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()

    def first(self, space: str, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair in [begin, end)."""
        return next(self.scan(space, begin, end), None)

    def last_below(self, space: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last pair whose key is lower than `key`."""
        cursor = self._families[space].iter()
        cursor.seek_for_prev(key)
        if cursor.valid() and cursor.key() == key:
            cursor.prev()
        return (cursor.key(), cursor.value()) if cursor.valid() else None

    def figure(self, name: str) -> int:
        """A RocksDB property summed over the keyspaces, e.g. `rocksdb.estimate-live-data-size`."""
        return sum(family.property_int_value(name) or 0 for family in self._families.values())

    # -- inside -------------------------------------------------------------------------------

    def _open_db(self) -> Rdict:
        if self._db is None:
            raise BrokerUnavailable(f"the store in {self.path} is closed")
        return self._db

    def _check_format(self) -> None:
        found = self.get(META, _FORMAT_KEY)
        if found is None:
            self._open_db().get_column_family(META).put(_FORMAT_KEY, str(FORMAT).encode())
            return
        if not found.isdigit() or int(found) > FORMAT:
            raise BrokerUnavailable(
                f"the store in {self.path} has format {found.decode(errors='replace')}, this version of"
                f" popgate reads up to format {FORMAT}: start the newer version that wrote it"
            )

    def _options(self) -> Options:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(3)
        options.set_max_log_file_size(4 * 1024 * 1024)
        options.set_db_write_buffer_size(4 * self._write_buffer_bytes)
        options.set_max_total_wal_size(8 * self._write_buffer_bytes)
        options.set_stats_dump_period_sec(0)
        return options

    def _space_options(self) -> dict[str, Options]:
        cache = Cache(self._cache_bytes)
        spaces = {}
        for name in SPACES:
            options = Options(raw_mode=True)
            options.set_write_buffer_size(self._write_buffer_bytes)
            options.set_compression_type(DBCompressionType.lz4())
            if name in (INFLIGHT, PROGRESS, TIMERS):
                # Short-lived keys: a delete soon follows its put, so compaction is told to look early.
                options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
            table = BlockBasedOptions()
            table.set_block_cache(cache)
            table.set_bloom_filter(10, False)
            options.set_block_based_table_factory(table)
            spaces[name] = options
        return spaces


def _opening_sentence(path: Path, error: Exception) -> str:
    text = str(error)
    if "lock" in text.lower():
        return f"the store in {path} is in use by another process (stop it, or give another --data): {text}"
    if "corruption" in text.lower():
        return f"the store in {path} is damaged: {text}"
    return f"the store in {path} cannot be opened: {text}"
